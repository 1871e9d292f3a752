"""Steps of the transformers engine on a card: launches from Python, and the kernels beside them.

The library launches one operation after another, so that layers cost more than bytes: at one stream every model below
32B takes the time of its launches, and experts are a loop over all of them. Decoding steps of our own launch a fifth of
that in a dense layer, and nothing of what is captured.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from qserve.core.facts import load
from qserve.core.hardware import Device
from qserve.core.model_spec import ModelSpec
from qserve.core.offload import are_streamed
from qserve.core.release import parse_release
from qserve.core.schemes import SCHEMES
from qserve.engines.transformers.plan.offloaded_weights import NOTHING_OFFLOADED, OffloadedWeights
from qserve.engines.transformers.plan.releases import POOL_SINCE
from qserve.engines.transformers.plan.schemes import holds_fp8
from qserve.planner.plan import Plan
from qserve.planner.speed.steps.times import StepTimes
from qserve.planner.speed.terms.card import CardSpeed, card_of
from qserve.planner.speed.terms.engine_costs import EngineCosts
from qserve.planner.speed.terms.formats import weight_format
from qserve.planner.speed.terms.network import RankNetwork, rank_network

__all__ = ["TransformersSteps", "card_steps"]

_COPY_BYTES_PER_S = 300e9
"""Fitted to Qwen's tables of long prompts on A100 and H20: torch's repeat and copy of the cache."""
_FP8_BYTES_PER_S = 760e9
"""What the block-wise kernel of 4.51 reads of fp8 weights on an H20, beside its launches."""
_NO_COPIES = ("awq",)
"""Measured with an attention that takes grouped heads as they are."""


@dataclass
class TransformersSteps:
    """As `StepTimes`, for transformers: `layer_us` a layer of the library's, never faster than the kernels.

    `decode_launches`: of a decoding step of our own; None where it is the library's. `expert_launches`: of a layer's
    experts in fp8, by grouped products of ours; None where it is the library's loop over all of them.
    """

    kernels: StepTimes
    layer_us: float
    expert_us: float
    scheme: str
    offloaded: OffloadedWeights = NOTHING_OFFLOADED
    decode_launches: int | None = None
    expert_launches: int | None = None

    @property
    def costs(self) -> EngineCosts:
        return self.kernels.costs

    @property
    def network(self) -> RankNetwork:
        return self.kernels.network

    @classmethod
    def of(
        cls,
        spec: ModelSpec,
        scheme: str,
        card: CardSpeed,
        offloaded: OffloadedWeights = NOTHING_OFFLOADED,
        decode_launches: int | None = None,
        expert_launches: int | None = None,
    ) -> TransformersSteps:
        """The steps on one card; launches are those of the hosts on which Qwen measured (configs/speed.toml)."""
        table = load("speed")["transformers"]
        rows = table["hosts"].get(card.like or "", {}) if card.name not in table["cards"] else {}
        rows = rows or table["hosts"][table["cards"].get(card.name, "a100-80gb")]
        weights = weight_format(scheme, tuple(card.peaks), card.is_hopper)
        costs = EngineCosts("transformers", 0.0, 0.0, 0.0, 0.0, table["intake_ms"], mixes_prefill=True)
        kernels = StepTimes(card, rank_network(spec, weights), costs)
        expert_us = rows["expert_fp8" if scheme == "fp8" else "expert"]
        layer_us = rows.get(scheme, rows["bf16"])
        return cls(kernels, layer_us, expert_us, scheme, offloaded, decode_launches, expert_launches)

    def decode_s(self, batch: int, context: float) -> float:
        """Seconds of one step. One of our own reads keys in their pages, and is launched while the last one runs."""
        if self.decode_launches is not None:
            launching = self.decode_launches * self.launch_us / 1e6
            return self.offloaded.beside(max(launching, self.kernels.decode_s(batch, context)))
        computing = self.kernels.decode_s(batch, context) + self._repeated_s(batch, context)
        return self.offloaded.beside(max(self._launches_s, computing))

    @property
    def launch_us(self) -> float:
        """Of one operation from Python."""
        return float(self.layer_us / load("speed")["transformers"]["launches"]["library_layer"])

    def mixed_s(self, batch: int, context: float, chunks: list[tuple[int, int]]) -> float:
        """Seconds of a step with prompts."""
        return self.offloaded.beside(max(self._launches_s, self.kernels.mixed_s(batch, context, chunks)))

    def explained(self) -> Iterator[str]:
        """See `ExplainedSteps`."""
        if self.decode_launches is None:
            yield "steps take the time of their launches from Python: configs/speed.toml, [transformers]"
        else:
            yield (
                f"a decode step takes {self.decode_launches} launches of {self.launch_us:.0f} us, or its kernels where "
                "they take longer; a step with prompts takes its launches: configs/speed.toml, [transformers]; not "
                "measured"
            )
        if self.offloaded.copying_s:
            yield str(self.offloaded)

    def _repeated_s(self, batch: int, context: float) -> float:
        """Keys and values are copied for every query head before they are attended to."""
        network = self.network
        if self.scheme in _NO_COPIES:
            return 0.0
        return batch * context * network.attention_layers * network.heads * network.head_dim * 4 / _COPY_BYTES_PER_S

    @property
    def _launches_s(self) -> float:
        network = self.network
        if self.expert_launches is not None:
            experts_us = network.moe_layers * self.expert_launches * self.launch_us
            return (network.num_layers * self.layer_us + experts_us) / 1e6
        experts = network.moe_layers * network.experts * self.expert_us
        dequantized = network.linear_weights / _FP8_BYTES_PER_S if self.scheme == "fp8" else 0.0
        return (network.num_layers * self.layer_us + experts) / 1e6 + dequantized


def card_steps(plan: Plan, spec: ModelSpec, device: Device) -> TransformersSteps:
    """The steps of a plan on `device`, a card."""
    card = card_of(device)
    launches = _decode_launches(plan, spec.num_hidden_layers)
    is_ours = parse_release(plan.engine_version) >= POOL_SINCE and holds_fp8(plan.quant.scheme, (device,))
    of_experts = int(load("speed")["transformers"]["launches"]["fp8_experts"]) if is_ours else None
    return TransformersSteps.of(spec, plan.quant.scheme, card, OffloadedWeights.of(plan, card), launches, of_experts)


def _decode_launches(plan: Plan, num_layers: int) -> int | None:
    """Launches of a decoding step by our own layers: a dense model, 16-bit or bitsandbytes', on one card; else None."""
    counted = load("speed")["transformers"]["launches"]
    if any(device.cuda_graphs_bytes for device in plan.devices):
        return int(counted["beside"]) + 1
    if are_streamed(plan.model.architecture, SCHEMES[plan.quant.scheme].bits, _places(plan)):
        return int(counted["beside"] + num_layers * counted["streamed_layer"])
    return None


def _places(plan: Plan) -> Iterable[int | str]:
    placed = plan.placement.device_map
    return placed.values() if isinstance(placed, dict) else ()
