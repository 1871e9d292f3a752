"""A plan that has to fit, or the reason why it can't."""

from __future__ import annotations

from qserve.errors import DoesNotFit
from qserve.planner.plan import Plan

__all__ = ["check_fits"]


def check_fits(plan: Plan) -> Plan:
    """`plan`, if it fits. Raises DoesNotFit with the suggestions."""
    if plan.fits:
        return plan
    ways = "".join(f"\n  - {way.title} ({way.cost}): {way.command}" for way in plan.suggestions)
    raise DoesNotFit(f"{plan.why_not}" + (f". What would fit:{ways}" if ways else ""), plan.short_bytes)
