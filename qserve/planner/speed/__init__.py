"""How fast a plan serves: kernels' times, the engine's own, and a simulated scheduler over both. docs/speed.md."""
