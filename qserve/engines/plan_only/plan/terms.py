"""The terms of a card that is planned for only, in the order of --explain."""

from __future__ import annotations

from dataclasses import dataclass

from qserve.engines.plan_only.plan.estimate import RUNTIME_BYTES, PlanOnlyEstimate
from qserve.planner.formulas import weights_formula
from qserve.planner.term import Term, TermKind

__all__ = ["TERMS", "PlanOnlySizes", "terms_of"]


@dataclass(frozen=True)
class PlanOnlySizes:
    """The estimate with so many bytes of keys, values and states on a card."""

    estimate: PlanOnlyEstimate
    cache_bytes: int


class Weights(TermKind[PlanOnlySizes]):
    name, column = "weights", "weights"

    def num_bytes(self, sizes: PlanOnlySizes, stage: int) -> int:
        return sizes.estimate.weights_bytes

    def formula(self, sizes: PlanOnlySizes, stage: int) -> str:
        return weights_formula(sizes.estimate.candidate)

    def source(self, sizes: PlanOnlySizes) -> str:
        return "safetensors headers" if sizes.estimate.candidate.checkpoint.tensors else "dimensions of config.json"

    def band(self, sizes: PlanOnlySizes, num_bytes: int) -> tuple[int, int]:
        """What is converted has layouts of its own: some keep more in 16 bit, or in another number of bits."""
        is_converted = sizes.estimate.candidate.in_flight is not None
        return (num_bytes * 95 // 100, num_bytes * 115 // 100) if is_converted else (num_bytes, num_bytes * 103 // 100)


class KvCache(TermKind[PlanOnlySizes]):
    name, column = "KV cache", "kv_cache"

    def num_bytes(self, sizes: PlanOnlySizes, stage: int) -> int:
        return sizes.cache_bytes

    def formula(self, sizes: PlanOnlySizes, stage: int) -> str:
        states = sizes.estimate.state_bytes
        beside = f", and {states} B of states" if states else ""
        return f"{sizes.estimate.kv_token_bytes} B a token{beside}"

    def source(self, sizes: PlanOnlySizes) -> str:
        return "config.json"


class Activations(TermKind[PlanOnlySizes]):
    name, column = "activations", "activations"

    def num_bytes(self, sizes: PlanOnlySizes, stage: int) -> int:
        return sizes.estimate.activations_bytes

    def formula(self, sizes: PlanOnlySizes, stage: int) -> str:
        estimate, spec = sizes.estimate, sizes.estimate.candidate.spec
        return (
            f"2·T·(3I + 4H) with T={estimate.max_num_batched_tokens}, H={spec.hidden_size}, and logits of "
            f"{estimate.max_num_seqs} sequences × {spec.vocab_size} × 4 B"
        )

    def source(self, sizes: PlanOnlySizes) -> str:
        return "the layers' widths; no engine was measured on this card"

    def band(self, sizes: PlanOnlySizes, num_bytes: int) -> tuple[int, int]:
        return num_bytes // 3, num_bytes * 3


class Runtime(TermKind[PlanOnlySizes]):
    name, column = "runtime", "runtime"

    def num_bytes(self, sizes: PlanOnlySizes, stage: int) -> int:
        return RUNTIME_BYTES[1]

    def formula(self, sizes: PlanOnlySizes, stage: int) -> str:
        return "the driver's context, compiled kernels and buffers of the engine there"

    def source(self, sizes: PlanOnlySizes) -> str:
        return "assumed; no engine was measured on this card"

    def band(self, sizes: PlanOnlySizes, num_bytes: int) -> tuple[int, int]:
        return RUNTIME_BYTES[0], RUNTIME_BYTES[2]


TERMS: tuple[TermKind[PlanOnlySizes], ...] = (Weights(), KvCache(), Activations(), Runtime())


def terms_of(sizes: PlanOnlySizes) -> tuple[Term, ...]:
    """Of one card."""
    return tuple(kind.term(sizes, 0, kind.num_bytes(sizes, 0)) for kind in TERMS)
