"""Steps of the transformers library: one launch after another from Python, so that layers cost more than bytes.

Experts are a loop over all of them. At one stream every model below 32B takes the time of its launches;
the weights matter where reading them takes longer.
"""

from __future__ import annotations

from dataclasses import dataclass

from qserve.core.facts import load
from qserve.core.model_spec import ModelSpec
from qserve.planner.speed.step import StepTimes
from qserve.planner.speed.terms.card import CardSpeed
from qserve.planner.speed.terms.engine_costs import EngineCosts
from qserve.planner.speed.terms.formats import weight_format
from qserve.planner.speed.terms.network import RankNetwork, rank_network
from qserve.planner.speed.terms.offload import NOTHING_OFFLOADED, OffloadedWeights

__all__ = ["TransformersSteps"]

_COPY_BYTES_PER_S = 300e9
"""Fitted to Qwen's tables of long prompts on A100 and H20: torch's repeat and copy of the cache."""
_FP8_BYTES_PER_S = 760e9
"""What the library's block-wise kernel reads of fp8 weights on an H20, beside its launches."""
_NO_COPIES = ("awq",)
"""Measured with an attention that takes grouped heads as they are."""


@dataclass
class TransformersSteps:
    """As `StepTimes`, for transformers: `layer_us` a layer, never faster than the kernels."""

    kernels: StepTimes
    layer_us: float
    expert_us: float
    scheme: str
    offloaded: OffloadedWeights = NOTHING_OFFLOADED

    @property
    def costs(self) -> EngineCosts:
        return self.kernels.costs

    @property
    def network(self) -> RankNetwork:
        return self.kernels.network

    @classmethod
    def of(
        cls, spec: ModelSpec, scheme: str, card: CardSpeed, offloaded: OffloadedWeights = NOTHING_OFFLOADED
    ) -> TransformersSteps:
        """The steps on one card; launches are those of the hosts on which Qwen measured (configs/speed.toml)."""
        table = load("speed")["transformers"]
        rows = table["hosts"].get(card.like or "", {}) if card.name not in table["cards"] else {}
        rows = rows or table["hosts"][table["cards"].get(card.name, "a100-80gb")]
        weights = weight_format(scheme, tuple(card.peaks), card.is_hopper)
        costs = EngineCosts("transformers", 0.0, 0.0, 0.0, 0.0, table["intake_ms"], mixes_prefill=True)
        kernels = StepTimes(card, rank_network(spec, weights), costs)
        expert_us = rows["expert_fp8" if scheme == "fp8" else "expert"]
        return cls(kernels, rows.get(scheme, rows["bf16"]), expert_us, scheme, offloaded)

    def decode_s(self, batch: int, context: float) -> float:
        """Seconds of one step."""
        computing = self.kernels.decode_s(batch, context) + self._repeated_s(batch, context)
        return self.offloaded.beside(max(self._launches_s(), computing))

    def mixed_s(self, batch: int, context: float, chunks: list[tuple[int, int]]) -> float:
        """Seconds of a step with prompts."""
        return self.offloaded.beside(max(self._launches_s(), self.kernels.mixed_s(batch, context, chunks)))

    def _repeated_s(self, batch: int, context: float) -> float:
        """Keys and values are copied for every query head before they are attended to."""
        network = self.network
        if self.scheme in _NO_COPIES:
            return 0.0
        return batch * context * network.attention_layers * network.heads * network.head_dim * 4 / _COPY_BYTES_PER_S

    def _launches_s(self) -> float:
        network = self.network
        experts = network.moe_layers * network.experts * self.expert_us
        dequantized = network.linear_weights / _FP8_BYTES_PER_S if self.scheme == "fp8" else 0.0
        return (network.num_layers * self.layer_us + experts) / 1e6 + dequantized
