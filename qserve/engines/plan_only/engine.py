"""The engine of cards that are planned for only: it has a planner, and nothing that serves."""

from __future__ import annotations

from qserve.engines.plan_only.plan.planner import PlanOnlyPlanner
from qserve.planner.engine import PLAN_ONLY, Engine

__all__ = ["ENGINE"]

ENGINE = Engine(PLAN_ONLY, PlanOnlyPlanner())
