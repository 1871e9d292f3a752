"""From checkpoint, hardware and request to a `Plan`: the planner's story, one line a stage."""

from __future__ import annotations

from dataclasses import replace

from qserve.core.checkpoint import Checkpoint
from qserve.core.hardware import Hardware
from qserve.errors import UsageError
from qserve.planner.candidates import candidates
from qserve.planner.engine_args import engine_args
from qserve.planner.explain import traps
from qserve.planner.notes import notes_on
from qserve.planner.plan import Plan
from qserve.planner.request import PlanRequest
from qserve.planner.settle import ROOM_TOKENS, settle
from qserve.planner.setup import Setup
from qserve.planner.suggest import suggestions

__all__ = ["make_plan"]


def make_plan(checkpoint: Checkpoint, hardware: Hardware, request: PlanRequest) -> Plan:
    """The best plan that fits; where none does, the nearest one, with what it lacks and the ways out.

    Raises UsageError for a request that contradicts itself or the model.
    """
    setups = list(candidates(checkpoint, hardware, request))
    plan, setup = _first_that_fits(setups) or _nearest(setups)
    notes = (*checkpoint.messages, *hardware.notes, *notes_on(setup, plan))
    plan = replace(plan, notes=notes, explanations=traps(setup, plan))
    if plan.fits:
        return replace(plan, engine_args=engine_args(setup, plan))
    return replace(plan, suggestions=suggestions(setup, _fits))


def _first_that_fits(setups: list[Setup]) -> tuple[Plan, Setup] | None:
    """Room for a real workload at the best quality; only then less room."""
    for room_tokens in ROOM_TOKENS:
        for setup in setups:
            plan = settle(setup, room_tokens)
            if plan.fits:
                return plan, setup
    return None


def _nearest(setups: list[Setup]) -> tuple[Plan, Setup]:
    """What lacks least: of the same shortage the better quality."""
    plans = [(settle(setup, ROOM_TOKENS[-1]), setup) for setup in setups]
    return min(plans, key=lambda pair: pair[0].short_bytes)


def _fits(checkpoint: Checkpoint, hardware: Hardware, request: PlanRequest) -> Plan | None:
    """The plan for a changed request where it fits, without suggestions of its own."""
    try:
        found = _first_that_fits(list(candidates(checkpoint, hardware, request)))
    except UsageError:  # a change that this model or engine can't do is no way out
        return None
    return found[0] if found else None
