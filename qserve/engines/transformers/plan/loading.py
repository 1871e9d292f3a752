"""How transformers keeps the tensors of a checkpoint once it has loaded them."""

from __future__ import annotations

from dataclasses import replace

from qserve.core.schemes import SCHEMES
from qserve.planner.candidate import Candidate
from qserve.planner.memory.resident_weights import quantizes_experts
from qserve.planner.memory.weights import Loading

__all__ = ["loading_of"]


def loading_of(candidate: Candidate, *, has_pool: bool) -> Loading:
    """`has_pool`: a release that keeps a pool of KV cache, which also fuses experts (transformers 5)."""
    quantization = candidate.in_flight
    fuses_experts = candidate.spec.moe is not None and has_pool
    keeps_experts = fuses_experts and not quantizes_experts(candidate.spec, candidate.dtype, candidate.devices[0])
    if quantization is not None and SCHEMES[quantization.scheme].by_bitsandbytes and keeps_experts:
        quantization = replace(quantization, skipped=(*quantization.skipped, ".experts."))
    return Loading(
        dtype=candidate.dtype,
        quantization=quantization,
        fuse_experts=fuses_experts,
        round_blocks=not candidate.on_cpu,
        untie_lm_head=not has_pool,  # transformers 4 kept an fp8 checkpoint's own lm_head
    )
