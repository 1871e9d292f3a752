"""The transformers engine as it is registered: its planner, and where the rest of it is."""

from __future__ import annotations

from qserve.engines.transformers.plan.planner import TransformersPlanner
from qserve.planner.engine import Engine

__all__ = ["ENGINE"]

ENGINE = Engine(
    "transformers",
    TransformersPlanner(),
    launch="qserve.engines.transformers.launch:TransformersLaunch",
    checks="qserve.engines.transformers.detect.checks:TransformersChecks",
    reward="qserve.engines.transformers.reward:ENGINE",
    standby="qserve.engines.transformers.worker",
)
