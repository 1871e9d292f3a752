"""What the chat worker and the reward worker share: a checkpoint loaded, quantized, placed, and what it holds."""
