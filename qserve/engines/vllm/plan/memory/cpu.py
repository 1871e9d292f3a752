"""vLLM on a CPU: what its worker holds beside weights and cache. Measured with scripts/plan_against_engines.py."""

from __future__ import annotations

from qserve.core.model_spec import ModelSpec
from qserve.engines.vllm.plan.constants import STEP_VLLM_CPU
from qserve.units import GIB, MIB

__all__ = ["activation_bytes", "cache_bytes", "heap_bytes", "packed_bytes"]

_CACHE_SHARE = 0.3
_MOST_CACHE_SHARE = 0.6
_SAMPLER_BYTES = 14  # 16-bit logits, their fp32 copy, probabilities and noise, per sequence and vocabulary entry
# glibc's DEFAULT_MMAP_THRESHOLD_MAX: larger blocks go back to the system when they are freed.
_LARGEST_HEAP_BLOCK = 32 * MIB


def activation_bytes(spec: ModelSpec, max_num_seqs: int, max_num_batched_tokens: int, element_bytes: int) -> int:
    """T·(3I + 2H) elements of the widest layer and 14·S·V of the sampler, and what the first step leaves behind."""
    layer = max_num_batched_tokens * (3 * spec.intermediate_size + 2 * spec.hidden_size) * element_bytes
    rows = 0 if spec.head.kind == "score" else min(max_num_seqs, max_num_batched_tokens) * spec.vocab_size
    return layer + _SAMPLER_BYTES * rows + STEP_VLLM_CPU.num_bytes


def packed_bytes(spec: ModelSpec, element_bytes: int) -> int:
    """Copies of the embedding and of lm_head in the kernels' own order, made even where the two are tied.

    Linear layers are packed too, but theirs replaces the original. Source: vllm vocab_parallel_embedding.py, which
    calls dispatch_cpu_unquantized_gemm(layer, remove_weight=False) for each.
    """
    matrix = spec.vocab_size * spec.hidden_size * element_bytes
    return matrix if spec.head.kind == "score" else 2 * matrix


def heap_bytes(spec: ModelSpec, element_bytes: int) -> int:
    """Freed blocks that the C library keeps: packing a layer leaves a hole as large as its largest heap block."""
    query = spec.num_attention_heads * spec.head_dim
    rows_of_qkv = query + 2 * spec.num_key_value_heads * spec.head_dim
    sizes = [
        elements * spec.hidden_size * element_bytes
        for elements in (rows_of_qkv, query, 2 * spec.intermediate_size, spec.intermediate_size)
    ]
    return spec.num_hidden_layers * max((size for size in sizes if size <= _LARGEST_HEAP_BLOCK), default=0)


def cache_bytes(left_bytes: int, sequence_bytes: int) -> int:
    """A part of the RAM that is left, in whole GiB; more where one sequence of full length needs it and others don't.

    vLLM takes whole GiB from VLLM_CPU_KVCACHE_SPACE.
    """
    if left_bytes < GIB:
        return left_bytes
    share = max(1, int(left_bytes * _CACHE_SHARE) // GIB)
    whole = -(-sequence_bytes // GIB)
    return (whole if share < whole <= left_bytes * _MOST_CACHE_SHARE // GIB else share) * GIB
