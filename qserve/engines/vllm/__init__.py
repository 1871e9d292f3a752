"""All that is vLLM's: planned, detected, started, asked. vLLM itself runs unchanged in processes of its own."""
