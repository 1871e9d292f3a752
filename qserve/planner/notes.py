"""What a user should know about a plan beside its figures, whatever engine it is for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from qserve.core.cards.wheels import least_of_torch, shown, too_old
from qserve.core.hardware import Device
from qserve.planner.plan import Plan
from qserve.planner.setup import Setup
from qserve.units import format_bytes

__all__ = ["explanations_of", "length_note", "old_card_note"]


def length_note(setup: Setup, plan: Plan, why: str = "no more fits") -> Iterator[str]:
    """That the plan's length is not the model's, where the planner chose it."""
    positions = setup.spec.max_position_embeddings
    if plan.fits and plan.workload.max_model_len < positions and setup.request.max_model_len is None:
        yield f"max_model_len is {plan.workload.max_model_len} of the model's {positions}: {why}"


def old_card_note(devices: Iterable[Device], torch: str) -> Iterator[str]:
    """That the wheels of vLLM and of this torch have no kernels for a card, and which have."""
    least = least_of_torch(torch)
    if (old := too_old(devices, least)) is not None:
        yield (
            f"{old.name} has compute capability {shown(old.compute_capability)}: vLLM's wheels and torch's default "
            f"ones hold kernels from {shown(least)} on; torch's build for CUDA 12.6 (its index cu126) has them"
        )


def explanations_of(setup: Setup, plan: Plan) -> tuple[str, ...]:
    """What write-ups on fitting models get wrong, said with this plan's numbers."""
    tokens = plan.workload.max_num_batched_tokens
    logprobs = format_bytes(tokens * setup.spec.vocab_size * 4)
    return (
        "bf16 takes the same bytes as fp16; what it saves is overflows",
        "with SDPA or flash attention no length × length matrix is kept: activations grow linearly with the tokens of "
        "a step, and halving max_model_len halves a sequence's cache, not the whole",
        f"prompt log-probabilities (lm-eval) need tokens × vocabulary × 4 B more: {logprobs} at a step of {tokens}",
    )
