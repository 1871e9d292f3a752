"""The terms of a transformers worker on one device, in the order of --explain. A new one is a class and a line here."""

from __future__ import annotations

from dataclasses import dataclass

from qserve.planner.engines.transformers.estimate import TransformersEstimate
from qserve.planner.engines.transformers.memory import scoring_logits_bytes
from qserve.planner.formulas import weights_formula
from qserve.planner.memory.kv import kv_element_bytes
from qserve.planner.term import Term, TermKind
from qserve.units import format_bytes

__all__ = ["TERMS", "DeviceShare", "terms_of"]


@dataclass(frozen=True)
class DeviceShare:
    """What of the estimate is on one device: its part of weights and cache, and the peak of a step there."""

    estimate: TransformersEstimate
    weights_bytes: int
    cache_bytes: int
    activations_bytes: int


class Weights(TermKind[DeviceShare]):
    name, column = "weights", "weights"

    def num_bytes(self, sizes: DeviceShare, stage: int) -> int:
        return sizes.weights_bytes

    def formula(self, sizes: DeviceShare, stage: int) -> str:
        return weights_formula(sizes.estimate.setup)

    def source(self, sizes: DeviceShare) -> str:
        return "safetensors headers" if sizes.estimate.setup.checkpoint.tensors else "dimensions of config.json"

    def band(self, sizes: DeviceShare, num_bytes: int) -> tuple[int, int]:
        return num_bytes, num_bytes * 102 // 100


class KvCache(TermKind[DeviceShare]):
    name, column = "KV cache", "kv_cache"

    def num_bytes(self, sizes: DeviceShare, stage: int) -> int:
        return sizes.cache_bytes

    def formula(self, sizes: DeviceShare, stage: int) -> str:
        setup, spec = sizes.estimate.setup, sizes.estimate.setup.spec
        element = kv_element_bytes(setup.kv_cache_dtype, setup.dtype)
        layers = spec.num_full_layers + spec.num_sliding_layers
        formula = f"2 × {layers} layers × {spec.num_key_value_heads} KV heads × {spec.head_dim} × {element} B per token"
        state = sizes.estimate.state_sequence_bytes
        return f"{formula}, and {state} B of state per sequence" if state else formula

    def source(self, sizes: DeviceShare) -> str:
        return "config.json"


class Activations(TermKind[DeviceShare]):
    name, column = "activations", "activations"

    def num_bytes(self, sizes: DeviceShare, stage: int) -> int:
        return sizes.activations_bytes

    def formula(self, sizes: DeviceShare, stage: int) -> str:
        estimate, spec = sizes.estimate, sizes.estimate.setup.spec
        if not estimate.has_pool:
            return "what the prompt's peak exceeds the answer's cache by, and cuBLAS workspace"
        score = 0 if spec.head.kind == "score" else scoring_logits_bytes(spec, estimate.setup.dtype)
        return (
            f"2·T·(3I + 4H) with T={estimate.max_num_batched_tokens}, I={spec.intermediate_size}, "
            f"H={spec.hidden_size}, and the larger of logits of {estimate.max_num_seqs} sequences × {spec.vocab_size} "
            f"× 6 B and of a piece of a scored prompt, {format_bytes(score)}"
        )

    def source(self, sizes: DeviceShare) -> str:
        return "transformers speed benchmarks of Qwen2 to Qwen3 (docs/memory.md)"

    def band(self, sizes: DeviceShare, num_bytes: int) -> tuple[int, int]:
        return num_bytes // 2, num_bytes * 3 // 2


class Runtime(TermKind[DeviceShare]):
    name, column = "runtime", "runtime"

    def num_bytes(self, sizes: DeviceShare, stage: int) -> int:
        return sizes.estimate.runtime.num_bytes

    def formula(self, sizes: DeviceShare, stage: int) -> str:
        return "the Python process and its libraries" if sizes.estimate.setup.on_cpu else "CUDA context"

    def source(self, sizes: DeviceShare) -> str:
        return sizes.estimate.runtime.source

    def band(self, sizes: DeviceShare, num_bytes: int) -> tuple[int, int]:
        return sizes.estimate.runtime.low_bytes, sizes.estimate.runtime.high_bytes


TERMS: tuple[TermKind[DeviceShare], ...] = (Weights(), KvCache(), Activations(), Runtime())


def terms_of(share: DeviceShare) -> tuple[Term, ...]:
    """All of them, those of nothing too: what the estimate corrected already is not corrected again."""
    return tuple(kind.term(share, 0, kind.num_bytes(share, 0)) for kind in TERMS)
