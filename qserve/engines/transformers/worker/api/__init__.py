"""The chat worker's routes, and what stands between a request and the engine."""
