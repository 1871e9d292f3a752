"""Planning for vLLM: what it holds on a card or a CPU, release by release, and the flags that give it the plan."""
