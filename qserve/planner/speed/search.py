"""Which layout serves the load: tensor parallel times replicas times quantization, each planned and simulated."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from qserve.core.checkpoint import Checkpoint
from qserve.core.hardware import Device, Hardware
from qserve.core.model_spec import ModelSpec
from qserve.core.quantization import FAMILIES, SCHEMES
from qserve.errors import QserveError
from qserve.planner.engine import changed_request, option_value
from qserve.planner.make import make_plan
from qserve.planner.plan import Plan
from qserve.planner.request import PlanRequest
from qserve.planner.speed.estimate import SpeedEstimate, estimate_speed, is_launch_bound, replica_of
from qserve.planner.speed.figures import Targets
from qserve.planner.speed.price import Price, price_of
from qserve.planner.speed.rate import KEPT_SHARE, highest_rate
from qserve.planner.speed.request import SpeedRequest
from qserve.planner.speed.terms.engine_costs import has_speed, launch_bound_engines

__all__ = ["Layout", "choose_layout", "layouts_for", "with_rate"]

_REPLICAS = (1, 2, 3, 4, 6, 8, 12, 16)
_COMPARED = ("fp8", "awq", "gptq-int4")
"""What is counted beside the quantization that quality prefers, where it is the planner's to choose."""
_NEARLY = 1.05
"""A layout that is slower by less than this and takes fewer cards is preferred."""
_CHUNKS = (4096, 2048, 1024)


@dataclass(frozen=True)
class Layout:
    """One way to serve the load: `replicas` servers of `plan`, with what they reach.

    `kept` is the share of requests that keep the targets, `kept_surely` that which would even at the slow end of the
    band; both are 1 without targets.
    """

    plan: Plan
    speed: SpeedEstimate
    replicas: int
    kept: float
    kept_surely: float
    price: Price

    @property
    def cards(self) -> int:
        placement = self.plan.placement
        return self.replicas * placement.tensor_parallel_size * placement.pipeline_parallel_size

    @property
    def name(self) -> str:
        """In words: bf16, 2 × TP 4."""
        placement = self.plan.placement
        stages = f" × PP {placement.pipeline_parallel_size}" if placement.pipeline_parallel_size > 1 else ""
        return f"{self.plan.quant.scheme}, {self.replicas} × TP {placement.tensor_parallel_size}{stages}"

    @property
    def quality(self) -> int:
        return SCHEMES[self.plan.quant.scheme].quality

    @property
    def e2e_ms(self) -> float:
        return self.speed.figures.e2e_ms.mean or float("inf")

    def to_json(self, chosen: Layout, is_pareto: bool) -> dict[str, Any]:
        """A row of "alternatives"."""
        figures, workload = self.speed.figures, self.plan.workload
        return {
            "tensor_parallel_size": self.plan.placement.tensor_parallel_size,
            "pipeline_parallel_size": self.plan.placement.pipeline_parallel_size,
            "replicas": self.replicas,
            "layout": self.name,
            "cards": self.cards,
            "quant": self.plan.quant.scheme,
            "max_num_seqs": workload.max_num_seqs,
            "max_num_batched_tokens": workload.max_num_batched_tokens,
            "ttft_ms": round(figures.ttft_ms.mean, 2),
            "tpot_ms": round(figures.tpot_ms.mean, 3),
            "output_tokens_per_s": round(figures.output_tokens_per_s, 2),
            "requests_per_s": round(figures.requests_per_s, 4),
            "max_rps": None if self.speed.max_rps is None else round(self.speed.max_rps, 3),
            "kept_share": round(self.kept, 3),
            "kept_share_at_band": round(self.kept_surely, 3),
            **self.price.to_json(),
            "pareto": is_pareto,
            "chosen": self is chosen,
        }


def layouts_for(checkpoint: Checkpoint, hardware: Hardware, request: PlanRequest, wanted: SpeedRequest) -> list[Layout]:
    """Every layout that fits, the ones that the flags fix first among them; empty where nothing fits."""
    found = []
    for plan, spec in _plans(checkpoint, hardware, request):
        device = _device(hardware, plan)
        ranks = plan.placement.tensor_parallel_size * plan.placement.pipeline_parallel_size
        most = max(1, len(hardware.devices) // ranks) if not plan.on_cpu and not is_launch_bound(plan) else 1
        counts = [wanted.replicas] if wanted.replicas else sorted({n for n in _REPLICAS if n <= most} | {most})
        counts = [count for count in counts if count <= most]
        found += [_layout(plan, spec, device, wanted, count) for count in counts]
    return found


def choose_layout(layouts: list[Layout], targets: Targets) -> Layout:
    """With targets: of the best quality that surely keeps them the fewest cards; else what keeps them best.

    Without: of the best quality the shortest time to the whole answer, fewer cards where that is nearly as short.
    """
    if targets:
        for share in ("kept_surely", "kept"):
            keeping = [one for one in layouts if getattr(one, share) >= KEPT_SHARE]
            if keeping:
                return min(keeping, key=lambda one: (-one.quality, one.cards, one.e2e_ms))
        most = max(one.kept for one in layouts)
        return min((one for one in layouts if one.kept >= most - 0.02), key=lambda one: one.e2e_ms)
    best = max(one.quality for one in layouts)
    able = [one for one in layouts if one.quality == best]
    shortest = min(one.e2e_ms for one in able)
    return min((one for one in able if one.e2e_ms <= _NEARLY * shortest), key=lambda one: (one.cards, one.e2e_ms))


def with_rate(layout: Layout, spec: ModelSpec, device: Device, wanted: SpeedRequest) -> Layout:
    """The layout with the highest rate that it keeps the targets at (without targets: that it keeps up with)."""
    replica = replica_of(layout.plan, spec, device, wanted.measured)
    rate = layout.replicas * highest_rate(replica, layout.speed.load, wanted.targets)
    return replace(layout, speed=replace(layout.speed, max_rps=rate))


def tuned(layout: Layout, spec: ModelSpec, device: Device, wanted: SpeedRequest, request: PlanRequest) -> Layout:
    """Smaller steps where they keep the targets for more requests: a prompt then holds decodes up for less long."""
    workload = layout.plan.workload
    if not wanted.targets or request.max_num_batched_tokens or is_launch_bound(layout.plan):
        return layout
    best = layout
    for tokens in _CHUNKS:
        if workload.max_num_seqs <= tokens < workload.max_num_batched_tokens:
            plan = replace(layout.plan, workload=replace(workload, max_num_batched_tokens=tokens))
            tried = _layout(plan, spec, device, wanted, layout.replicas)
            if tried.kept_surely > best.kept_surely + 0.01:
                best = replace(tried, price=layout.price)
    return best


def pareto(layouts: list[Layout]) -> set[int]:
    """Ids of layouts that no other beats in tokens/s and in time per token at no more cards."""
    front = set()
    for one in layouts:
        mine = one.speed.figures
        beaten = any(
            other.speed.figures.output_tokens_per_s >= mine.output_tokens_per_s
            and other.speed.figures.tpot_ms.mean <= mine.tpot_ms.mean
            and other.cards <= one.cards
            and other is not one
            and (other.speed.figures, other.cards) != (mine, one.cards)
            for other in layouts
        )
        if not beaten:
            front.add(id(one))
    return front


def _layout(plan: Plan, spec: ModelSpec, device: Device, wanted: SpeedRequest, replicas: int) -> Layout:
    speed, targets = estimate_speed(plan, spec, device, wanted.named_load, replicas, wanted.measured), wanted.targets
    kept = surely = 1.0
    if targets:
        kept = speed.figures.kept_share(targets)
        surely = speed.figures.kept_share(targets, speed.ttft.high, speed.latency.high)
    ranks = plan.placement.tensor_parallel_size * plan.placement.pipeline_parallel_size
    return Layout(plan, speed, replicas, kept, surely, price_of(device, ranks * replicas, speed, wanted.prices))


def _plans(checkpoint: Checkpoint, hardware: Hardware, request: PlanRequest) -> Iterator[tuple[Plan, ModelSpec]]:
    """A plan for every quantization and number of ranks that fits, each once."""
    seen = set()
    for scheme in _schemes(checkpoint, request):
        for ranks in _ranks(hardware, request):
            wanted = changed_request(request, quant=scheme, tensor_parallel_size=ranks)
            try:
                plan = make_plan(checkpoint, hardware, wanted)
            except QserveError:
                continue
            key = (plan.quant.scheme, plan.placement.tensor_parallel_size, plan.placement.pipeline_parallel_size)
            if plan.fits and key not in seen and has_speed(plan.engine):
                seen.add(key)
                yield plan, checkpoint.spec


def _schemes(checkpoint: Checkpoint, request: PlanRequest) -> list[str]:
    if request.quant in FAMILIES and checkpoint.spec.quantization is None:
        others = _COMPARED if request.quant == "auto" else FAMILIES[request.quant]
        return [request.quant, *others]
    return [request.quant]


def _ranks(hardware: Hardware, request: PlanRequest) -> list[int | None]:
    fixed = option_value(request, "tensor_parallel_size")
    if fixed or option_value(request, "pipeline_parallel_size") or request.engine in launch_bound_engines():
        return [fixed]
    count = len(hardware.devices)
    return [ranks for ranks in (1, 2, 4, 8, 16) if ranks <= count] or [None]


def _device(hardware: Hardware, plan: Plan) -> Device:
    return hardware.cpu_device if plan.on_cpu or not hardware.devices else hardware.devices[0]
