"""What vLLM itself loads, in its own processes."""
