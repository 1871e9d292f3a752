"""The arithmetic of vLLM's memory: pure functions of the model's dimensions, the card and the release."""
