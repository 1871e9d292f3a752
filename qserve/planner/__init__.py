"""Pure arithmetic: does it fit, with which quantization, where, and for how many. No torch, no network."""

from __future__ import annotations

from qserve.planner.engine import plan_request
from qserve.planner.make import make_plan
from qserve.planner.plan import Plan
from qserve.planner.request import PlanRequest

__all__ = ["Plan", "PlanRequest", "make_plan", "plan_request"]
