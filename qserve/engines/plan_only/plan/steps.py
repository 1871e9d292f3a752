"""How long a step takes where no kernel was measured: what it reads over bandwidth, what it multiplies over the peak.

Both are taken at the shares that configs/plan_only.toml plans with; the bands of [bands.plan-only] in
configs/speed.toml reach from its most to its least.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from qserve.core.hardware import Device
from qserve.core.model_spec import ModelSpec
from qserve.core.plan_only import backend_of, peak_flop_per_s
from qserve.core.schemes import SCHEMES
from qserve.planner.plan import Plan
from qserve.planner.speed.terms.engine_costs import EngineCosts
from qserve.planner.speed.terms.network import RankNetwork, rank_network

__all__ = ["BandwidthSteps"]

_COSTS = EngineCosts("plan-only", 0.0, 0.0, 0.0, 0.0, intake_ms=10.0)
_UNKNOWN_BANDWIDTH = 200e9


@dataclass(frozen=True)
class BandwidthSteps:
    """Steps of one rank: `bandwidth` and `flops` are what is planned to be reached, `kv_token_bytes` are of one token.

    Links between cards are not counted.
    """

    network: RankNetwork
    bandwidth: float
    flops: float
    kv_token_bytes: float
    costs: EngineCosts = _COSTS

    @classmethod
    def of(cls, plan: Plan, spec: ModelSpec, device: Device) -> BandwidthSteps:
        """The steps of `plan` on cards like `device`."""
        backend, ranks = backend_of(device.kind), plan.placement.tensor_parallel_size
        peak = peak_flop_per_s(device.known_as) or 20 * (device.bandwidth_bytes_per_s or _UNKNOWN_BANDWIDTH)
        return cls(
            rank_network(spec, SCHEMES[plan.quant.scheme].unpacked, ranks),
            backend.shares[1] * (device.bandwidth_bytes_per_s or _UNKNOWN_BANDWIDTH),
            backend.computed[1] * peak,
            plan.model.kv_bytes_per_token / ranks,
        )

    def decode_s(self, batch: int, context: float) -> float:
        """Seconds of one token of each of `batch` sequences."""
        moved = self._weights_bytes(batch) + batch * context * self.kv_token_bytes
        return max(moved / self.bandwidth, self._operations(batch, context * batch, batch) / self.flops)

    def mixed_s(self, batch: int, context: float, chunks: list[tuple[int, int]]) -> float:
        """Seconds of a step that reads prompts, the head once for each of them."""
        tokens = batch + sum(new for new, _ in chunks)
        attended = batch * context + sum(new * (before + new / 2) for new, before in chunks)
        read = batch * context + sum(before + new for new, before in chunks)
        moved = self._weights_bytes(tokens) + read * self.kv_token_bytes
        return max(moved / self.bandwidth, self._operations(tokens, attended, batch + len(chunks)) / self.flops)

    def explained(self) -> Iterator[str]:
        """See `ExplainedSteps`."""
        yield (
            f"a decode step reads {self._weights_bytes(1) / 1e9:.2f} GB of weights at {self.bandwidth / 1e9:.0f} GB/s, "
            f"a prompt is multiplied at {self.flops / 1e12:.1f} TFLOP/s: shares of the peaks in "
            "configs/plan_only.toml, not measured"
        )

    def _weights_bytes(self, tokens: int) -> float:
        """Of the layers and the head, of experts those that `tokens` tokens meet."""
        net = self.network
        dense = sum(gemm.rows * gemm.columns * gemm.count * gemm.weights.bytes_per_weight for gemm in net.gemms)
        head = net.lm_head.rows * net.lm_head.columns * net.lm_head.weights.bytes_per_weight
        met = net.experts * (1 - (1 - net.experts_per_token / net.experts) ** tokens) if net.experts else 0.0
        return dense + head + net.moe_layers * met * net.weights_per_expert * net.expert_format.bytes_per_weight

    def _operations(self, tokens: int, attended: float, heads_read: int) -> float:
        net = self.network
        each = sum(gemm.rows * gemm.columns * gemm.count for gemm in net.gemms)
        each += net.moe_layers * net.experts_per_token * net.weights_per_expert
        attention = 4 * attended * net.heads * net.head_dim * (net.attention_layers + net.sliding_layers)
        return 2 * tokens * each + 2 * heads_read * net.lm_head.rows * net.lm_head.columns + attention
