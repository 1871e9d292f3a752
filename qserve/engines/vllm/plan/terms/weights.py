"""Weights of a rank: its share of the tensors, and what the model allocates for steps when it loads."""

from __future__ import annotations

from qserve.engines.vllm.plan.encoder import deepstack_bytes
from qserve.engines.vllm.plan.step_buffers import choice_bytes, draft_streams_bytes
from qserve.engines.vllm.plan.trial import Trial
from qserve.planner.formulas import weights_formula
from qserve.planner.memory.rope import rope_cache_bytes
from qserve.planner.term import TermKind
from qserve.units import format_bytes

__all__ = ["Weights"]


class Weights(TermKind[Trial]):
    name, column, learned = "weights", "weights", "weights"

    def num_bytes(self, sizes: Trial, stage: int) -> int:
        return sizes.stage_weights[stage] + sum(num_bytes for num_bytes, _ in _buffers(sizes))

    def formula(self, sizes: Trial, stage: int) -> str:
        candidate = sizes.candidate
        rotary = format_bytes(rope_cache_bytes(candidate.spec, candidate.dtype))
        parts = [weights_formula(candidate), f"{rotary} rotary table"]
        return " + ".join([*parts, *(f"{format_bytes(held)} {name}" for held, name in _buffers(sizes) if held)])

    def source(self, sizes: Trial) -> str:
        checkpoint = sizes.candidate.checkpoint
        is_from_headers = checkpoint.tensors and sizes.spec is checkpoint.spec
        where = "" if sizes.candidate.on_cpu else ", in the blocks of torch's CUDA allocator"
        return ("safetensors headers" if is_from_headers else "dimensions") + where

    def band(self, sizes: Trial, num_bytes: int) -> tuple[int, int]:
        return int(num_bytes * 0.995), int(num_bytes * 1.01)

    def is_shown(self, sizes: Trial, num_bytes: int) -> bool:
        return True


def _buffers(sizes: Trial) -> tuple[tuple[int, str], ...]:
    """What the model allocates for a step when it is made, with names."""
    tokens, drafts = sizes.max_num_batched_tokens, sizes.options.num_speculative_tokens > 0
    return (
        (_deepstack(sizes), "deepstack buffers of a step"),
        (choice_bytes(sizes.spec, tokens, drafts), "tokens that the index of each layer chooses in a step"),
        (draft_streams_bytes(sizes.spec, tokens) if drafts else 0, "streams of a step for the MTP head"),
    )


def _deepstack(sizes: Trial) -> int:
    """Features of the vision encoder's inner layers, for every token of a step; logged among the weights."""
    if sizes.options.language_model_only:
        return 0
    return deepstack_bytes(sizes.spec, sizes.max_num_batched_tokens)
