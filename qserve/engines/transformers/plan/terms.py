"""The terms of a transformers worker on one device, in the order of --explain. A new one is a class and a line here."""

from __future__ import annotations

from dataclasses import dataclass

from qserve.engines.transformers.kernels.shapes import MAX_KERNELS, num_row_counts
from qserve.engines.transformers.plan.constants import (
    COMPILED_KERNEL,
    GRAPH_BYTES_FIRST,
    GRAPH_BYTES_PER_LAYER,
    PROMPT_READER,
    READER_WORD_BYTES,
    STRUCTURE_TRIAL,
)
from qserve.engines.transformers.plan.estimate import NUM_READERS, TransformersEstimate
from qserve.engines.transformers.plan.memory import num_product_shapes, scoring_logits_bytes
from qserve.planner.formulas import weights_formula
from qserve.planner.memory.kv import kv_element_bytes
from qserve.planner.term import Term, TermKind
from qserve.units import format_bytes

__all__ = ["CARD_TERMS", "CPU_TERMS", "DeviceShare", "terms_of"]


@dataclass(frozen=True)
class DeviceShare:
    """What of the estimate is on one device: its part of weights and cache, and the peak of a step there.

    `buffers_bytes` of the weights are those through which layers in RAM are streamed.
    """

    estimate: TransformersEstimate
    weights_bytes: int
    cache_bytes: int
    activations_bytes: int
    buffers_bytes: int = 0


class Weights(TermKind[DeviceShare]):
    name, column = "weights", "weights"

    def num_bytes(self, sizes: DeviceShare, stage: int) -> int:
        return sizes.weights_bytes

    def formula(self, sizes: DeviceShare, stage: int) -> str:
        copied = sizes.estimate.shortlist_bytes
        copy = f" + {format_bytes(copied)} copy of the head in int8 (few sequences read it first)" if copied else ""
        streamed = sizes.buffers_bytes
        ahead = f"; with {format_bytes(streamed)} of buffers for layers in RAM, which come one ahead"
        return weights_formula(sizes.estimate.candidate) + copy + (ahead if streamed else "")

    def source(self, sizes: DeviceShare) -> str:
        return "safetensors headers" if sizes.estimate.candidate.checkpoint.tensors else "dimensions of config.json"

    def band(self, sizes: DeviceShare, num_bytes: int) -> tuple[int, int]:
        return num_bytes, num_bytes * 102 // 100


class KvCache(TermKind[DeviceShare]):
    name, column = "KV cache", "kv_cache"

    def num_bytes(self, sizes: DeviceShare, stage: int) -> int:
        return sizes.cache_bytes

    def formula(self, sizes: DeviceShare, stage: int) -> str:
        candidate, spec = sizes.estimate.candidate, sizes.estimate.candidate.spec
        element = kv_element_bytes(candidate.kv_cache_dtype, candidate.dtype)
        layers = spec.num_full_layers + spec.num_sliding_layers
        formula = f"2 × {layers} layers × {spec.num_key_value_heads} KV heads × {spec.head_dim} × {element} B per token"
        state = sizes.estimate.state_sequence_bytes
        return f"{formula}, and {state} B of state per sequence" if state else formula

    def source(self, sizes: DeviceShare) -> str:
        return "config.json"


class Activations(TermKind[DeviceShare]):
    name, column = "activations", "activations"

    def num_bytes(self, sizes: DeviceShare, stage: int) -> int:
        return max(0, sizes.activations_bytes - sizes.estimate.kernels_bytes - sizes.estimate.readers_bytes)

    def formula(self, sizes: DeviceShare, stage: int) -> str:
        estimate, spec = sizes.estimate, sizes.estimate.candidate.spec
        if not estimate.has_pool:
            return "what the prompt's peak exceeds the answer's cache by, and cuBLAS workspace"
        score = (
            0
            if spec.head.kind == "score"
            else scoring_logits_bytes(spec, estimate.candidate.dtype, estimate.max_num_batched_tokens)
        )
        return (
            f"2·T·(3I + 4H) with T={estimate.max_num_batched_tokens}, I={spec.intermediate_size}, "
            f"H={spec.hidden_size}, and the larger of logits of {estimate.max_num_seqs} sequences × {spec.vocab_size} "
            f"× 6 B and of a piece of a scored prompt, {format_bytes(score)}{_step_text(estimate)}"
        )

    def source(self, sizes: DeviceShare) -> str:
        return "transformers speed benchmarks of Qwen2 to Qwen3 (docs/memory.md)"

    def band(self, sizes: DeviceShare, num_bytes: int) -> tuple[int, int]:
        return num_bytes // 2, num_bytes * 3 // 2


class CompiledKernels(TermKind[DeviceShare]):
    """What oneDNN keeps for each shape of a product: as `activations` it comes with requests, and stays."""

    name, column = "compiled kernels", "activations"

    def num_bytes(self, sizes: DeviceShare, stage: int) -> int:
        return min(sizes.activations_bytes, sizes.estimate.kernels_bytes)

    def formula(self, sizes: DeviceShare, stage: int) -> str:
        estimate = sizes.estimate
        each = format_bytes(COMPILED_KERNEL.num_bytes)
        if estimate.num_kernels == MAX_KERNELS:
            return f"{MAX_KERNELS} kernels of {each}: no more are kept"
        shapes = num_product_shapes(estimate.candidate.spec)
        counts = num_row_counts(estimate.max_num_batched_tokens)
        return f"{shapes} shapes of matrices × {counts} row counts, {each} each"

    def source(self, sizes: DeviceShare) -> str:
        return COMPILED_KERNEL.source

    def band(self, sizes: DeviceShare, num_bytes: int) -> tuple[int, int]:
        low, high = COMPILED_KERNEL.low_bytes, COMPILED_KERNEL.high_bytes
        return min(num_bytes, sizes.estimate.num_kernels * low), max(num_bytes, sizes.estimate.num_kernels * high)


class PromptReaders(TermKind[DeviceShare]):
    """The processes that read prompts, of which the one for large bodies is there while they come, and one beside."""

    name, column = "reading prompts", "activations"

    def num_bytes(self, sizes: DeviceShare, stage: int) -> int:
        return max(0, min(sizes.activations_bytes - sizes.estimate.kernels_bytes, sizes.estimate.readers_bytes))

    def formula(self, sizes: DeviceShare, stage: int) -> str:
        base, words = format_bytes(PROMPT_READER.num_bytes), sizes.estimate.candidate.spec.vocab_size
        readers = (
            f"{NUM_READERS} processes, for small and large bodies, of {base} + {READER_WORD_BYTES} B × {words} words"
        )
        return f"{readers}; {format_bytes(STRUCTURE_TRIAL.num_bytes)} for one that tries structures"

    def source(self, sizes: DeviceShare) -> str:
        return f"{PROMPT_READER.source}; {STRUCTURE_TRIAL.source}"

    def band(self, sizes: DeviceShare, num_bytes: int) -> tuple[int, int]:
        return num_bytes // NUM_READERS, num_bytes + PROMPT_READER.high_bytes + STRUCTURE_TRIAL.high_bytes

    def is_shown(self, sizes: DeviceShare, num_bytes: int) -> bool:
        return num_bytes > 0


class CudaGraphs(TermKind[DeviceShare]):
    """Decoding steps that are captured: on one card, of dense models whose products are torch's or ours."""

    name, column = "CUDA graphs", "cuda_graphs"

    def num_bytes(self, sizes: DeviceShare, stage: int) -> int:
        return sizes.estimate.graphs.num_bytes

    def formula(self, sizes: DeviceShare, stage: int) -> str:
        first, each = format_bytes(GRAPH_BYTES_FIRST.num_bytes), format_bytes(GRAPH_BYTES_PER_LAYER.num_bytes)
        layers = sizes.estimate.candidate.spec.num_hidden_layers
        return f"{first} + {sizes.estimate.num_graphs} graphs × {layers} layers × {each}{_scratch_text(sizes.estimate)}"

    def source(self, sizes: DeviceShare) -> str:
        return sizes.estimate.graphs.source

    def band(self, sizes: DeviceShare, num_bytes: int) -> tuple[int, int]:
        return sizes.estimate.graphs.low_bytes, sizes.estimate.graphs.high_bytes


class Runtime(TermKind[DeviceShare]):
    name, column = "runtime", "runtime"

    def num_bytes(self, sizes: DeviceShare, stage: int) -> int:
        return sizes.estimate.runtime.num_bytes

    def formula(self, sizes: DeviceShare, stage: int) -> str:
        candidate = sizes.estimate.candidate
        if not candidate.on_cpu:
            return "CUDA context"
        build = ", CUDA's among them: torch's build for cards is installed" if candidate.hardware.torch_has_cuda else ""
        return f"the Python process and its libraries{build}"

    def source(self, sizes: DeviceShare) -> str:
        return sizes.estimate.runtime.source

    def band(self, sizes: DeviceShare, num_bytes: int) -> tuple[int, int]:
        return sizes.estimate.runtime.low_bytes, sizes.estimate.runtime.high_bytes


_ALWAYS: tuple[TermKind[DeviceShare], ...] = (Weights(), KvCache(), Activations(), Runtime())
CARD_TERMS: tuple[TermKind[DeviceShare], ...] = (*_ALWAYS, CudaGraphs())
CPU_TERMS: tuple[TermKind[DeviceShare], ...] = (*_ALWAYS, CompiledKernels(), PromptReaders())


def _step_text(estimate: TransformersEstimate) -> str:
    rows, experts = estimate.fp8_rows_bytes, estimate.fp8_experts_bytes
    if experts > max(rows, estimate.unpacked_bytes):
        return f" + {format_bytes(experts)} of rows between experts' products"
    return f" + {format_bytes(rows)} of rows in fp8" if rows > estimate.unpacked_bytes else _scratch_text(estimate)


def _scratch_text(estimate: TransformersEstimate) -> str:
    scratch = estimate.unpacked_bytes
    return f" + {format_bytes(scratch)} of a quantized weight in {estimate.candidate.dtype}" if scratch else ""


def terms_of(share: DeviceShare) -> tuple[Term, ...]:
    """The first four, those of nothing too: what the estimate corrected already is not corrected again.

    Of the others those that are shown: a reward worker has no processes that read prompts, and captures nothing.
    """
    kinds = CPU_TERMS if share.estimate.candidate.on_cpu else CARD_TERMS
    found = ((kind, kind.num_bytes(share, 0)) for kind in kinds)
    return tuple(
        kind.term(share, 0, num_bytes)
        for kind, num_bytes in found
        if kind in _ALWAYS or kind.is_shown(share, num_bytes)
    )
