"""From checkpoint, hardware and request to a `Plan`: the planner's story, one line a stage."""

from __future__ import annotations

from dataclasses import replace

from qserve.core.checkpoint import Checkpoint
from qserve.core.hardware import Hardware
from qserve.core.quantization import SCHEMES
from qserve.errors import UsageError
from qserve.planner.corrected import with_corrections
from qserve.planner.engines.vllm.explain import traps
from qserve.planner.engines.vllm.flags import engine_args
from qserve.planner.notes import notes_on
from qserve.planner.plan import Plan
from qserve.planner.request import PlanRequest
from qserve.planner.search.candidates import candidates
from qserve.planner.search.suggestions import suggestions
from qserve.planner.settle import ROOM_TOKENS, settle
from qserve.planner.setup import Setup
from qserve.units import format_bytes

__all__ = ["make_plan"]


def make_plan(checkpoint: Checkpoint, hardware: Hardware, request: PlanRequest) -> Plan:
    """The best plan that fits; where none does, the nearest one, with what it lacks and the ways out.

    Raises UsageError for a request that contradicts itself or the model.
    """
    checkpoint = checkpoint.overridden(request.overrides)
    setups = list(candidates(checkpoint, hardware, request))
    plan, setup = _first_that_fits(setups) or _nearest(setups)
    notes = (*checkpoint.messages, *hardware.notes, *_passed_over(setups, setup, plan), *notes_on(setup, plan))
    plan = with_corrections(setup, replace(plan, notes=notes, explanations=traps(setup, plan)))
    if plan.fits:
        return replace(plan, engine_args=engine_args(setup, plan))
    return replace(plan, suggestions=suggestions(setup, plan, _fits))


def _first_that_fits(setups: list[Setup]) -> tuple[Plan, Setup] | None:
    """Room for a real workload at the best quality; only then less room."""
    for room_tokens in ROOM_TOKENS:
        for setup in setups:
            plan = settle(setup, room_tokens)
            if plan.fits:
                return plan, setup
    return None


def _passed_over(setups: list[Setup], taken: Setup, plan: Plan) -> tuple[str, ...]:
    """Why `auto` did not take a better quantization: what each lacked for the same room."""
    quality = SCHEMES[taken.quant.scheme].quality
    better = [setup for setup in setups if SCHEMES[setup.quant.scheme].quality > quality]
    if not better or not plan.fits:
        return ()
    room = next((room for room in ROOM_TOKENS if room <= plan.kv_cache_tokens), ROOM_TOKENS[-1])
    short: dict[str, int] = {}
    for setup in better:
        missing = settle(setup, room).short_bytes
        short[setup.quant.scheme] = min(missing, short.get(setup.quant.scheme, missing))
    lacks = ", ".join(f"{scheme} lacks {format_bytes(missing)}" for scheme, missing in short.items())
    order = " > ".join(dict.fromkeys(setup.quant.scheme for setup in setups))
    return (f"quality {order}: {lacks} for a cache of {room} tokens, so {taken.quant.scheme} was taken",)


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
