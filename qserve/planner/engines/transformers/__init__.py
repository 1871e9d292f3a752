"""Planning for the transformers engine: one device, or layers over cards, RAM and disk."""

from __future__ import annotations

from qserve.planner.engine import Engine
from qserve.planner.engines.transformers.planner import TransformersPlanner

__all__ = ["ENGINE"]

ENGINE = Engine(
    "transformers",
    TransformersPlanner(),
    launch="qserve.engine.own_launch:TransformersLaunch",
    checks="qserve.detect.engines.transformers:TransformersChecks",
    reward="qserve.reward.serving.own:ENGINE",
)
