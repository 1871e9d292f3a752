"""What the reward worker answers: its ASGI app, metrics, memory and report."""
