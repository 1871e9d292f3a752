"""Weights of a rank: its share of the tensors, and what the model allocates for steps when it loads."""

from __future__ import annotations

from qserve.engines.vllm.plan.encoder import deepstack_bytes
from qserve.engines.vllm.plan.trial import Trial
from qserve.planner.formulas import weights_formula
from qserve.planner.memory.rope import rope_cache_bytes
from qserve.planner.term import TermKind
from qserve.units import format_bytes

__all__ = ["Weights"]


class Weights(TermKind[Trial]):
    name, column, learned = "weights", "weights", "weights"

    def num_bytes(self, sizes: Trial, stage: int) -> int:
        return sizes.stage_weights[stage] + _deepstack(sizes)

    def formula(self, sizes: Trial, stage: int) -> str:
        candidate, buffers = sizes.candidate, _deepstack(sizes)
        rotary = format_bytes(rope_cache_bytes(candidate.spec, candidate.dtype))
        text = f"{weights_formula(candidate)} + {rotary} rotary table"
        return f"{text} + {format_bytes(buffers)} deepstack buffers of a step" if buffers else text

    def source(self, sizes: Trial) -> str:
        checkpoint = sizes.candidate.checkpoint
        is_from_headers = checkpoint.tensors and sizes.spec is checkpoint.spec
        where = "" if sizes.candidate.on_cpu else ", in the blocks of torch's CUDA allocator"
        return ("safetensors headers" if is_from_headers else "dimensions") + where

    def band(self, sizes: Trial, num_bytes: int) -> tuple[int, int]:
        return int(num_bytes * 0.995), int(num_bytes * 1.01)

    def is_shown(self, sizes: Trial, num_bytes: int) -> bool:
        return True


def _deepstack(sizes: Trial) -> int:
    """Features of the vision encoder's inner layers, for every token of a step; logged among the weights."""
    if sizes.options.language_model_only:
        return 0
    return deepstack_bytes(sizes.spec, sizes.max_num_batched_tokens)
