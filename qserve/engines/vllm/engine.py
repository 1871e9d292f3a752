"""VLLM as it is registered: its planner, and where the rest of it is."""

from __future__ import annotations

from qserve.engines.vllm.plan.planner import VllmPlanner
from qserve.planner.engine import Engine

__all__ = ["ENGINE"]

ENGINE = Engine(
    "vllm",
    VllmPlanner(),
    launch="qserve.engines.vllm.launch.server:VllmLaunch",
    checks="qserve.engines.vllm.detect:VllmChecks",
    reward="qserve.engines.vllm.reward.engine:ENGINE",
    wire="qserve.engines.vllm.wire.wire:WIRE",
)
