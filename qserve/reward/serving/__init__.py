"""The reward worker's ASGI app, metrics, memory and report."""
