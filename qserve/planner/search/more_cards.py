"""Uses more of the cards while fewer would cut the length or run too few full-length requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from qserve.planner.candidate import Candidate
from qserve.planner.plan import Plan
from qserve.units import format_count

__all__ = ["more_cards_note", "with_more_cards"]

# Fewer requests of the whole length at once than this, and a service queues its second or third long conversation.
_ENOUGH_AT_ONCE = 4

Fit = Callable[[Candidate, int], Plan]


def with_more_cards(
    fit: Fit, candidates: Sequence[Candidate], candidate: Candidate, plan: Plan, cache_tokens: int
) -> tuple[Plan, Candidate]:
    """The plan on as few cards as give it its whole length four times over; where none do, the best of them.

    The quantization and the stages stay. A layout that the user fixed is the only one in `candidates`, and stays too.
    """
    best = plan, candidate
    for other in _on_more_cards(candidates, candidate):
        if _is_roomy(*best):
            return best
        tried = fit(other, cache_tokens)
        if tried.fits and _worth(tried) > _worth(best[0]):
            best = tried, other
    return best


def more_cards_note(narrow: Plan, narrow_candidate: Candidate, plan: Plan, candidate: Candidate) -> tuple[str, ...]:
    """What fewer cards would have meant, and how to have them; nothing where the plan is on as few as suffice."""
    if len(candidate.devices) == len(narrow_candidate.devices):
        return ()
    fewer, length = len(narrow_candidate.devices), format_count(narrow.workload.max_model_len)
    if narrow.workload.max_model_len < candidate.spec.max_position_embeddings:
        limit = f"requests would end at {length} tokens"
    else:
        limit = f"{narrow.max_concurrency:.1f} requests of {length} tokens would run at once"
    taken = f"Takes {len(candidate.devices)} of {len(candidate.hardware.devices)} cards: on {fewer}, {limit}"
    if candidate.hardware.plan_only is not None:
        return (taken,)
    return (f"{taken}; --tensor-parallel-size {narrow_candidate.tensor_parallel_size} takes fewer",)


def _on_more_cards(candidates: Sequence[Candidate], candidate: Candidate) -> list[Candidate]:
    same = [
        other
        for other in candidates
        if other.quant == candidate.quant
        and other.pipeline_parallel_size == candidate.pipeline_parallel_size
        and len(other.devices) > len(candidate.devices)
    ]
    return sorted(same, key=lambda other: len(other.devices))


def _is_roomy(plan: Plan, candidate: Candidate) -> bool:
    wanted = candidate.request.max_model_len
    is_cut = wanted is None and plan.workload.max_model_len < candidate.spec.max_position_embeddings
    return not is_cut and plan.max_concurrency >= _ENOUGH_AT_ONCE


def _worth(plan: Plan) -> tuple[int, float]:
    return plan.workload.max_model_len, min(plan.max_concurrency, _ENOUGH_AT_ONCE)
