"""From checkpoint, hardware and request to a `Plan`: the planner's story, one line a stage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from qserve.core.checkpoint import Checkpoint
from qserve.core.hardware import Hardware, HostProcess
from qserve.core.model_parts import OWN_CODE, has_heads_of_own_code
from qserve.core.schemes import SCHEMES
from qserve.errors import UsageError
from qserve.planner.calibrate import with_corrections
from qserve.planner.candidate import Candidate
from qserve.planner.engine import EnginePlanner, engine_for
from qserve.planner.notes import explanations_of
from qserve.planner.plan import Plan
from qserve.planner.request import PlanRequest
from qserve.planner.search.more_cards import more_cards_note, with_more_cards
from qserve.planner.search.refusals import refuse, refuse_on_plan_only
from qserve.planner.search.stretch import overrides_of, warning_of
from qserve.planner.search.suggestions import faster, suggestions
from qserve.planner.speed.calibration import NOTHING_MEASURED, Measured
from qserve.units import format_bytes

__all__ = ["make_plan"]

# Tokens of KV cache that a plan should leave, best first: a service worth starting holds four conversations of 4096;
# below the last a chat is no chat.
_CACHE_TOKENS = (16384, 8192, 4096, 2048)

Fit = Callable[[Candidate, int], Plan]


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
    engine, candidates = _candidates(checkpoint, hardware, request)
    fit = _each_once(engine.fit)
    narrow, narrow_candidate = _first_that_fits(fit, candidates)
    plan, candidate = narrow, narrow_candidate
    if narrow.fits and not narrow.on_cpu:
        plan, candidate = with_more_cards(fit, candidates, narrow_candidate, narrow, _CACHE_TOKENS[0])
    plan = replace(plan, overrides=candidate.checkpoint.override_of(overrides_of(checkpoint, request)))
    notes = (
        *checkpoint.messages,
        *_unserved(checkpoint),
        *hardware.notes,
        *_passed_over(fit, candidates, candidate, plan),
        *more_cards_note(narrow, narrow_candidate, plan, candidate),
        *warning_of(checkpoint, candidate.checkpoint, plan.overrides),
        *engine.notes(candidate, plan),
        *_other_revision(checkpoint, plan),
    )
    explanations = (*engine.explanations(candidate, plan), *explanations_of(candidate, plan))
    told = replace(plan, notes=notes, explanations=explanations, host=_beside(hardware), guess=checkpoint.guess)
    plan = with_corrections(candidate, told)
    if plan.fits:
        plan = replace(plan, engine_args=engine.flags(candidate, plan))
    if not with_suggestions:
        return plan
    ways = faster if plan.fits else suggestions
    return replace(plan, suggestions=ways(replace(candidate, request=asked or request), plan, _fits, measured))


def _candidates(
    checkpoint: Checkpoint, hardware: Hardware, request: PlanRequest
) -> tuple[EnginePlanner, list[Candidate]]:
    engine = engine_for(hardware, request)
    refuse_on_plan_only(engine, hardware)
    checkpoint = engine.planner.as_served(checkpoint, request)
    refuse(engine, checkpoint, request)
    engine.planner.refuse(checkpoint, hardware, request)
    return engine.planner, list(engine.planner.candidates(checkpoint, hardware, request))


def _beside(hardware: Hardware) -> tuple[HostProcess, ...]:
    """The service's other processes; none where no service of ours would run."""
    return hardware.host if hardware.plan_only is None else ()


def _each_once(fit: Fit) -> Fit:
    """`fit`, which one search asks for the same several times, and which takes a fixed length for any cache."""
    done: dict[tuple[int, int], tuple[Candidate, Plan]] = {}  # held, so that no other takes its id

    def fitted(candidate: Candidate, cache_tokens: int) -> Plan:
        key = id(candidate), candidate.request.max_model_len or cache_tokens
        if key not in done:
            done[key] = candidate, fit(candidate, cache_tokens)
        return done[key][1]

    return fitted


def _first_that_fits(fit: Fit, candidates: list[Candidate]) -> tuple[Plan, Candidate]:
    """A cache for a real workload at the best quality; only then a smaller cache.

    Where nothing fits, what lacks least; of the same shortage the better quality.
    """
    most, *between, least = _CACHE_TOKENS
    for candidate in candidates:
        if (plan := fit(candidate, most)).fits:
            return plan, candidate
    smallest = [(fit(candidate, least), candidate) for candidate in candidates]
    able = [(plan, candidate) for plan, candidate in smallest if plan.fits]  # no other has room for more
    for cache_tokens in between:
        for _, candidate in able:
            if (plan := fit(candidate, cache_tokens)).fits:
                return plan, candidate
    return able[0] if able else min(smallest, key=lambda pair: pair[0].short_bytes)


def _passed_over(fit: Fit, candidates: list[Candidate], taken: Candidate, plan: Plan) -> tuple[str, ...]:
    """Why `auto` did not take a better quantization: what each lacked for the same cache."""
    if len(candidates) == 1:  # a stored checkpoint, whose scheme may be none that is made
        return ()
    quality = SCHEMES[taken.quant.scheme].quality
    better = [candidate for candidate in candidates if SCHEMES[candidate.quant.scheme].quality > quality]
    if not better or not plan.fits:
        return ()
    cache = next((tokens for tokens in _CACHE_TOKENS if tokens <= plan.kv_cache_tokens), _CACHE_TOKENS[-1])
    short: dict[str, int] = {}
    for candidate in better:
        missing = fit(candidate, cache).short_bytes
        short[candidate.quant.scheme] = min(missing, short.get(candidate.quant.scheme, missing))
    (first, missing), *rest = short.items()
    more = "".join(f", {scheme} {format_bytes(missing, 1)}" for scheme, missing in rest)
    return (f"Chose {taken.quant.scheme}: {first} needs {format_bytes(missing, 1)} more{more}",)


def _other_revision(checkpoint: Checkpoint, plan: Plan) -> tuple[str, ...]:
    """A revision that was asked for is of the model that was named, not of the quantized one loaded in its place."""
    if not checkpoint.asked or plan.quant.checkpoint == checkpoint.id:
        return ()
    return (
        f"{plan.quant.checkpoint} is loaded at its main revision; {checkpoint.revision} is one of {checkpoint.id}. To "
        f"pin the files that are loaded, name {plan.quant.checkpoint} itself with its --revision",
    )


def _fits(checkpoint: Checkpoint, hardware: Hardware, request: PlanRequest) -> Plan | None:
    """The plan for a changed request where it fits, without suggestions of its own."""
    try:
        plan = make_plan(checkpoint, hardware, request, with_suggestions=False)
    except UsageError:  # a change that this model, engine or map of modules can't do is no way out
        return None
    return plan if plan.fits else None


def _unserved(checkpoint: Checkpoint) -> tuple[str, ...]:
    """Of a checkpoint that is planned for its size alone."""
    if not has_heads_of_own_code(checkpoint.spec.architecture):
        return ()
    return (f"Planned only: {OWN_CODE}",)
