"""vLLM on a CPU: resident memory of its processes; no card, no graphs, and what repacking leaves."""

from __future__ import annotations

from qserve.core.model_spec import ModelSpec
from qserve.core.tensors import dtype_bytes
from qserve.engines.vllm.plan.constants import PYTHON_VLLM_CPU, PYTHON_VLLM_CPU_JOINED, STEP_VLLM_CPU
from qserve.engines.vllm.plan.terms.activations import step_extra_bytes
from qserve.engines.vllm.plan.terms.kv import KvCache, pages_formula, share_formula
from qserve.engines.vllm.plan.trial import Trial
from qserve.planner.constants import Constant
from qserve.planner.term import MeasuredKind, TermKind
from qserve.units import GIB, MIB

__all__ = [
    "CpuActivations",
    "CpuKvCache",
    "Python",
    "Repacking",
    "activation_bytes",
    "cache_bytes",
    "heap_bytes",
    "packed_bytes",
]

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


class CpuKvCache(KvCache):
    def formula(self, sizes: Trial, stage: int) -> str:
        if sizes.candidate.request.kv_cache_memory_bytes is not None:
            return super().formula(sizes, stage)
        share = share_formula(sizes)
        return f"a third of what {share} leaves in whole GiB, or one sequence of full length; {pages_formula(sizes)}"

    def source(self, sizes: Trial) -> str:
        return "all of it is touched at start-up: vllm cpu_worker.py"

    def band(self, sizes: Trial, num_bytes: int) -> tuple[int, int]:
        return num_bytes, num_bytes


class CpuActivations(TermKind[Trial]):
    name, column, learned = "activations", "activations", "activations"

    def num_bytes(self, sizes: Trial, stage: int) -> int:
        steps, element = (sizes.max_num_seqs, sizes.max_num_batched_tokens), dtype_bytes(sizes.candidate.dtype)
        return step_extra_bytes(sizes) + activation_bytes(sizes.spec, *steps, element)

    def formula(self, sizes: Trial, stage: int) -> str:
        spec, element = sizes.spec, dtype_bytes(sizes.candidate.dtype)
        layer = f"{element}·{sizes.max_num_batched_tokens}·(3·{spec.intermediate_size} + 2·{spec.hidden_size})"
        return f"widest layer {layer} + sampler 14·{sizes.max_num_seqs}·{spec.vocab_size} + first steps 60 MiB"

    def source(self, sizes: Trial) -> str:
        return STEP_VLLM_CPU.source

    def band(self, sizes: Trial, num_bytes: int) -> tuple[int, int]:
        return num_bytes // 2, num_bytes * 2

    def is_shown(self, sizes: Trial, num_bytes: int) -> bool:
        return True


class Repacking(TermKind[Trial]):
    """What packing for the CPU's kernels leaves beside the weights."""

    name, column = "repacking", "runtime"

    def num_bytes(self, sizes: Trial, stage: int) -> int:
        spec, element = sizes.spec, dtype_bytes(sizes.candidate.dtype)
        return packed_bytes(spec, element) + heap_bytes(spec, element)

    def formula(self, sizes: Trial, stage: int) -> str:
        spec, element = sizes.spec, dtype_bytes(sizes.candidate.dtype)
        copies = 1 if spec.head.kind == "score" else 2
        return (
            f"{copies} packed × {spec.vocab_size} × {spec.hidden_size} × {element} B (embedding, lm_head), and a hole "
            "of one block a layer in the C library's heap"
        )

    def source(self, sizes: Trial) -> str:
        return "vllm vocab_parallel_embedding.py; measured on three shapes"

    def band(self, sizes: Trial, num_bytes: int) -> tuple[int, int]:
        return num_bytes // 2, num_bytes * 5 // 4


class Python(MeasuredKind[Trial]):
    name, column, learned = "Python", "runtime", "runtime"

    def num_bytes(self, sizes: Trial, stage: int) -> int:
        return _processes(sizes).num_bytes

    def formula(self, sizes: Trial, stage: int) -> str:
        if sizes.joins_worker:
            return "API server, and the engine with its worker, before the model"
        return "API server, engine core and worker before the model"

    def source(self, sizes: Trial) -> str:
        return _processes(sizes).source

    def band(self, sizes: Trial, num_bytes: int) -> tuple[int, int]:
        return _processes(sizes).low_bytes, _processes(sizes).high_bytes

    def is_shown(self, sizes: Trial, num_bytes: int) -> bool:
        return True


def _processes(sizes: Trial) -> Constant:
    return PYTHON_VLLM_CPU_JOINED if sizes.joins_worker else PYTHON_VLLM_CPU
