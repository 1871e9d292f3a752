"""Planning for vLLM: what it holds on a card or a CPU, release by release, and the flags that give it the plan."""

from __future__ import annotations

from qserve.planner.engine import Engine
from qserve.planner.engines.vllm.planner import VllmPlanner

__all__ = ["ENGINE"]

ENGINE = Engine(
    "vllm",
    VllmPlanner(),
    launch="qserve.engine.vllm.launch:VllmLaunch",
    checks="qserve.detect.engines.vllm:VllmChecks",
    reward="qserve.reward.vllm.engine:ENGINE",
)
