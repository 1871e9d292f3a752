"""From checkpoint, hardware and request to a `Plan`: the planner's story, one line a stage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from qserve.core.checkpoint import Checkpoint
from qserve.core.hardware import Hardware
from qserve.core.schemes import SCHEMES
from qserve.errors import UsageError
from qserve.planner.corrections import with_corrections
from qserve.planner.engine import EnginePlanner, engine_for
from qserve.planner.notes import explanations_of
from qserve.planner.plan import Plan
from qserve.planner.request import PlanRequest
from qserve.planner.search.more_cards import widening_note, with_more_cards
from qserve.planner.search.refusals import refuse
from qserve.planner.search.suggestions import faster, suggestions
from qserve.planner.setup import Setup
from qserve.planner.speed.learned import NOTHING_MEASURED, Measured
from qserve.units import format_bytes

__all__ = ["make_plan"]

# Tokens of KV cache that a plan should leave, best first: a service worth starting holds four conversations of 4096;
# below the last a chat is no chat.
_CACHE_TOKENS = (16384, 8192, 4096, 2048)

Fit = Callable[[Setup, int], Plan]


def make_plan(
    checkpoint: Checkpoint,
    hardware: Hardware,
    request: PlanRequest,
    with_suggestions: bool = True,
    measured: Measured = NOTHING_MEASURED,
    asked: PlanRequest | None = None,
) -> Plan:
    """The best plan that fits; where none does, the nearest one, with what it lacks and the suggestions.

    Suggestions of a plan that fits are of what is fast enough to chat, where it is not itself.

    `with_suggestions`: these are searched for, which takes as long as dozens of plans; their speed rests on what was
    `measured` of this machine. They are changes of what the user `asked` for, where `request` fixes more than that
    (None: it does not).

    Raises UsageError for a request that contradicts itself or the model, and for an engine that nobody registered.
    """
    engine, setups = _candidates(checkpoint, hardware, request)
    narrow, narrow_setup = _first_that_fits(engine.fit, setups) or _nearest(engine.fit, setups)
    plan, setup = narrow, narrow_setup
    if narrow.fits and not narrow.on_cpu:
        plan, setup = with_more_cards(engine.fit, setups, narrow_setup, narrow, _CACHE_TOKENS[0])
    notes = (
        *checkpoint.messages,
        *hardware.notes,
        *_passed_over(engine.fit, setups, setup, plan),
        *widening_note(narrow, narrow_setup, plan, setup),
        *engine.notes(setup, plan),
    )
    explanations = (*engine.explanations(setup, plan), *explanations_of(setup, plan))
    plan = with_corrections(setup, replace(plan, notes=notes, explanations=explanations, host=hardware.host))
    if plan.fits:
        plan = replace(plan, engine_args=engine.flags(setup, plan))
    if not with_suggestions:
        return plan
    ways = faster if plan.fits else suggestions
    return replace(plan, suggestions=ways(replace(setup, request=asked or request), plan, _fits, measured))


def _candidates(checkpoint: Checkpoint, hardware: Hardware, request: PlanRequest) -> tuple[EnginePlanner, list[Setup]]:
    engine = engine_for(hardware, request)
    checkpoint = engine.planner.as_served(checkpoint, request)
    refuse(engine, checkpoint, request)
    engine.planner.refuse(checkpoint, hardware, request)
    return engine.planner, list(engine.planner.candidates(checkpoint, hardware, request))


def _first_that_fits(fit: Fit, setups: list[Setup]) -> tuple[Plan, Setup] | None:
    """A cache for a real workload at the best quality; only then a smaller cache."""
    for cache_tokens in _CACHE_TOKENS:
        for setup in setups:
            plan = fit(setup, cache_tokens)
            if plan.fits:
                return plan, setup
    return None


def _passed_over(fit: Fit, setups: list[Setup], taken: Setup, plan: Plan) -> tuple[str, ...]:
    """Why `auto` did not take a better quantization: what each lacked for the same cache."""
    if len(setups) == 1:  # a stored checkpoint, whose scheme may be none that is made
        return ()
    quality = SCHEMES[taken.quant.scheme].quality
    better = [setup for setup in setups if SCHEMES[setup.quant.scheme].quality > quality]
    if not better or not plan.fits:
        return ()
    cache = next((tokens for tokens in _CACHE_TOKENS if tokens <= plan.kv_cache_tokens), _CACHE_TOKENS[-1])
    short: dict[str, int] = {}
    for setup in better:
        missing = fit(setup, cache).short_bytes
        short[setup.quant.scheme] = min(missing, short.get(setup.quant.scheme, missing))
    (first, missing), *rest = short.items()
    more = "".join(f", {scheme} {format_bytes(missing, 1)}" for scheme, missing in rest)
    return (f"Chose {taken.quant.scheme}: {first} needs {format_bytes(missing, 1)} more{more}",)


def _nearest(fit: Fit, setups: list[Setup]) -> tuple[Plan, Setup]:
    """What lacks least: of the same shortage the better quality."""
    plans = [(fit(setup, _CACHE_TOKENS[-1]), setup) for setup in setups]
    return min(plans, key=lambda pair: pair[0].short_bytes)


def _fits(checkpoint: Checkpoint, hardware: Hardware, request: PlanRequest) -> Plan | None:
    """The plan for a changed request where it fits, without suggestions of its own."""
    try:
        plan = make_plan(checkpoint, hardware, request, with_suggestions=False)
    except UsageError:  # a change that this model, engine or map of modules can't do is no way out
        return None
    return plan if plan.fits else None
