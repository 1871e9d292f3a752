"""How fast a plan serves: kernels' times, the engine's own, and a simulated scheduler over both. docs/speed.md."""

from qserve.planner.speed.estimate import SpeedEstimate, estimate_speed
from qserve.planner.speed.load import Load

__all__ = ["Load", "SpeedEstimate", "estimate_speed"]
