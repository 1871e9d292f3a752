"""What a user should know about a plan beside its figures, whatever engine it is for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from qserve.core.hardware import Device
from qserve.core.wheels import least_of_torch, shown, too_old
from qserve.planner.candidate import Candidate
from qserve.planner.plan import Plan
from qserve.units import format_bytes, format_count

__all__ = ["explanations_of", "length_note", "old_card_note"]


def length_note(candidate: Candidate, plan: Plan, why: str = "no more fits") -> Iterator[str]:
    """That the plan's length is not the model's, where the planner chose it."""
    positions = candidate.spec.max_position_embeddings
    if plan.fits and plan.workload.max_model_len < positions and candidate.request.max_model_len is None:
        length, whole = format_count(plan.workload.max_model_len), format_count(positions)
        yield f"max_model_len is {length} of the model's {whole}: {why}"


def old_card_note(devices: Iterable[Device], torch: str) -> Iterator[str]:
    """That the wheels of vLLM and of this torch have no kernels for a card, and which have."""
    least = least_of_torch(torch)
    if (old := too_old(devices, least)) is not None:
        yield (
            f"{old.name} has compute capability {shown(old.compute_capability)}, and vLLM's and torch's usual wheels "
            f"start at {shown(least)}; torch's build for CUDA 12.6 (index cu126) supports it"
        )


def explanations_of(candidate: Candidate, plan: Plan) -> tuple[str, ...]:
    """What write-ups on fitting models get wrong, said with this plan's numbers."""
    logprobs = format_bytes(plan.workload.max_num_batched_tokens * candidate.spec.vocab_size * 4)
    return (
        "bf16 takes as many bytes as fp16; it avoids overflows",
        "Activations grow with the tokens of a step, not with max_model_len; halving max_model_len halves a sequence's "
        "cache, not the whole",
        f"Prompt log-probabilities (lm-eval) need {logprobs} more: tokens of a step × vocabulary × 4 B",
    )
