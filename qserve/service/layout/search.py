"""Which layout serves the load: tensor parallel times replicas times quantization, each planned and simulated."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from qserve.core.hardware import Device, Hardware
from qserve.core.model_spec import ModelSpec
from qserve.core.schemes import SCHEMES
from qserve.planner.engine import option_value
from qserve.planner.plan import Plan
from qserve.planner.request import PlanRequest
from qserve.planner.speed.estimate import Replica, SpeedEstimate, estimate_of, is_launch_bound, replica_of, ttft_metric
from qserve.planner.speed.figures import Figures, KeptCount, Targets
from qserve.planner.speed.load import Load
from qserve.planner.speed.price import Price, price_of
from qserve.planner.speed.rate import KEPT_SHARE, highest_rate
from qserve.service.layout.fitting_plans import FittingPlans
from qserve.service.load import SpeedRequest
from qserve.service.replicas import most_in_ram, num_engines

__all__ = [
    "Layout",
    "choose_layout",
    "device_for",
    "layout_of",
    "layouts_for",
    "pareto",
    "recounted",
    "shortened",
    "tuned",
    "with_rate",
]

_REPLICAS = (1, 2, 3, 4, 6, 8, 12, 16)
_KEPT_RATE = 0.9
_NEARLY = 1.05
"""A layout that is slower by less than this and takes fewer cards is preferred."""
_CHUNKS = (4096, 2048, 1024)
_GAIN = 0.01
_FEWEST_PROMPTS = 60
_WORTH = 0.1
"""So many more of the requests must keep the targets for limits that make the others wait."""


@dataclass(frozen=True)
class Layout:
    """One way to serve the load: `replicas` servers of `plan`, with what they reach.

    `kept` is the share of requests that keep the targets, `kept_surely` that which would even at the slow end of the
    band; both are 1 without targets. `tuned` names limits that the targets made smaller than the plan had them.
    """

    plan: Plan
    speed: SpeedEstimate
    replicas: int
    kept: float
    kept_surely: float
    price: Price
    tuned: tuple[str, ...] = ()

    @property
    def cards(self) -> int:
        placement = self.plan.placement
        return self.replicas * placement.num_ranks

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

    @property
    def per_user(self) -> float:
        """Tokens a second that one answer grows by."""
        return 1000 / self.speed.figures.tpot_ms.mean if self.speed.figures.tpot_ms.mean else 0.0

    @property
    def per_card(self) -> float:
        """Tokens a second that one card writes, for all users."""
        return self.speed.figures.output_tokens_per_s / self.cards

    @property
    def keeps_up(self) -> bool:
        """Whether requests do not pile up: as many are answered as come, and users wait less for the first token than
        for all after it.
        """
        load, figures = self.speed.load, self.speed.figures
        if load.rps is not None:
            return figures.requests_per_s > _KEPT_RATE * load.rps
        return not load.users or figures.ttft_ms.mean < figures.e2e_ms.mean / 2

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
            "tokens_per_s_per_user": round(self.per_user, 2),
            "tokens_per_s_per_card": round(self.per_card, 2),
            "requests_per_s": round(figures.requests_per_s, 4),
            "max_rps": None if self.speed.max_rps is None else round(self.speed.max_rps, 3),
            "kept_share": round(self.kept, 3),
            "kept_share_at_band": round(self.kept_surely, 3),
            "keeps_up": self.keeps_up,
            **self.price.to_json(),
            "pareto": is_pareto,
            "chosen": self is chosen,
        }


def layouts_for(
    plans: FittingPlans,
    hardware: Hardware,
    request: PlanRequest,
    wanted: SpeedRequest,
    tunes: bool = False,
    only_keeping: bool = False,
    cards: int | None = None,
    any_length: bool = False,
) -> list[Layout]:
    """Every layout that fits, the ones that the flags fix first among them; empty where nothing fits.

    Those whose max_model_len is shorter than a request are left out, since they refuse it, unless `any_length`.

    `tunes`: limits follow the targets where a layout misses them. `only_keeping`: those that can't keep the targets may
    be left out, and are simulated no further than it takes to tell. `cards`: those that take so many.
    """
    found = []
    spec = plans.checkpoint.spec
    for plan in plans.of(hardware, request):
        if not any_length and plan.workload.max_model_len < wanted.named_load.longest:
            continue
        device = device_for(hardware, plan)
        ranks = plan.placement.num_ranks
        most = max(1, len(hardware.devices) // ranks) if not plan.on_cpu and not is_launch_bound(plan) else 1
        if num_engines(plan) == 1 and (in_ram := most_in_ram(plan, hardware)) is not None:
            most = max(1, min(most, in_ram))
        each = (plan, spec, device, wanted)
        for count in _counts(plan, wanted, most):
            if cards is not None and count * ranks != cards:
                continue
            one = (
                _layout_that_reaches(KEPT_SHARE, *each, count, surely=False)
                if only_keeping
                else layout_of(*each, count)
            )
            if one is not None:
                found.append(tuned(one, spec, device, wanted, request) if tunes else one)
    return found


def _counts(plan: Plan, wanted: SpeedRequest, most: int) -> list[int]:
    """Servers that share the load: the ones asked for, or what the cards hold; engines of one server count as such."""
    engines = num_engines(plan)
    fixed = engines if engines > 1 else wanted.replicas
    counts = [fixed] if fixed else sorted({count for count in _REPLICAS if count <= most} | {most})
    return [count for count in counts if count <= most]


def choose_layout(layouts: list[Layout], targets: Targets) -> Layout:
    """With targets: of the best quality that surely keeps them the fewest cards; else what keeps them best.

    Without: of what keeps up with the load the best quality, of that the shortest time to the whole answer, fewer cards
    where that is nearly as short.
    """
    if targets:
        for share in ("kept_surely", "kept"):
            keeping = [one for one in layouts if getattr(one, share) >= KEPT_SHARE]
            if keeping:
                return min(keeping, key=lambda one: (-one.quality, one.cards, one.e2e_ms))
        most = max(one.kept for one in layouts)
        return min((one for one in layouts if one.kept >= most - 0.02), key=lambda one: one.e2e_ms)
    rest = [one for one in layouts if one.keeps_up] or layouts
    best = max(one.quality for one in rest)
    able = [one for one in rest if one.quality == best]
    shortest = min(one.e2e_ms for one in able)
    return min((one for one in able if one.e2e_ms <= _NEARLY * shortest), key=lambda one: (one.cards, one.e2e_ms))


def recounted(layout: Layout, spec: ModelSpec, device: Device, wanted: SpeedRequest) -> Layout:
    """The same servers under another load."""
    return replace(layout_of(layout.plan, spec, device, wanted, layout.replicas), tuned=layout.tuned)


def with_rate(layout: Layout, spec: ModelSpec, device: Device, wanted: SpeedRequest) -> Layout:
    """The layout with the highest rate that it keeps the targets at (without targets: that it keeps up with)."""
    replica = layout.speed.replica
    rate = layout.replicas * highest_rate(replica, layout.speed.load, wanted.targets)
    return replace(layout, speed=replace(layout.speed, max_rps=rate))


def tuned(layout: Layout, spec: ModelSpec, device: Device, wanted: SpeedRequest, request: PlanRequest) -> Layout:
    """With fewer sequences at once, and smaller steps, where these keep the targets for more requests.

    Fewer sequences bound the time per token, and let requests wait; a smaller step holds decodes up for less long.
    Where the time per token is kept already, nothing is gained by either.
    """
    if layout.kept_surely >= KEPT_SHARE or _keeps_tpot(layout, wanted.targets) or is_launch_bound(layout.plan):
        return layout
    short = replace(wanted, load=shortened(wanted.named_load))
    best = layout_of(layout.plan, spec, device, short, layout.replicas)
    for limit, values in (("max_num_seqs", _sequences(layout)), ("max_num_batched_tokens", _CHUNKS)):
        if option_value(request, limit):  # the user's
            continue
        for value in values:
            workload = best.plan.workload
            if value >= getattr(workload, limit) or (limit != "max_num_seqs" and value < workload.max_num_seqs):
                continue
            plan = replace(best.plan, workload=replace(workload, **{limit: value}))
            least = best.kept_surely + _GAIN
            tried = _layout_that_reaches(least, plan, spec, device, short, layout.replicas, surely=True)
            if tried is not None and tried.kept_surely > least:
                best = replace(tried, tuned=(*best.tuned, limit))
            elif best.tuned:
                break
    if not best.tuned:
        return layout
    found = recounted(best, spec, device, wanted)
    return found if found.kept >= KEPT_SHARE or found.kept_surely > layout.kept_surely + _WORTH else layout


def _keeps_tpot(layout: Layout, targets: Targets) -> bool:
    only = Targets(tpot_ms=targets.tpot_ms)
    return not only or layout.speed.figures.kept_share(only, 1.0, layout.speed.latency.high) >= KEPT_SHARE


def shortened(load: Load) -> Load:
    """Enough requests to tell whether targets are kept: two for each stream."""
    if load.trace or load.burst:
        return load
    return replace(load, num_prompts=min(load.total_prompts, max(2 * (load.streams or 0), _FEWEST_PROMPTS)))


def _sequences(layout: Layout) -> Iterator[int]:
    """Powers of two below what ran at once, down to an eighth of it."""
    peak = layout.speed.figures.peak_running
    most = 1 << max(0, peak - 1).bit_length() - 1 if peak > 1 else 0
    for share in (1, 2, 4, 8):
        if most // share >= 1:
            yield most // share


def pareto(layouts: list[Layout]) -> set[int]:
    """Ids of layouts that no other beats in tokens/s of one user and of one card at once."""
    return {id(one) for one in layouts if not any(_beats(other, one) for other in layouts)}


def _beats(other: Layout, one: Layout) -> bool:
    theirs, mine = (other.per_user, other.per_card), (one.per_user, one.per_card)
    return theirs != mine and theirs[0] >= mine[0] and theirs[1] >= mine[1]


def layout_of(plan: Plan, spec: ModelSpec, device: Device, wanted: SpeedRequest, replicas: int) -> Layout:
    """`replicas` servers of the plan under the load."""
    replica = replica_of(plan, spec, device, wanted.measured)
    return _layout_of(plan, replica, replica.run(wanted.named_load, replicas), device, wanted, replicas)


def _layout_that_reaches(
    share: float, plan: Plan, spec: ModelSpec, device: Device, wanted: SpeedRequest, replicas: int, *, surely: bool
) -> Layout | None:
    """None where fewer than `share` of the requests keep the targets, as soon as that is certain.

    `surely`: at the slow end of the band.
    """
    replica, load = replica_of(plan, spec, device, wanted.measured), wanted.named_load
    slow = (replica.band(ttft_metric(load)).high, replica.band("tpot").high) if surely else (1.0, 1.0)
    count = KeptCount(wanted.targets, load.shared_by(replicas).total_prompts, share, *slow)
    figures = replica.run_while(load, count.can_reach, replicas)
    return None if figures is None else _layout_of(plan, replica, figures, device, wanted, replicas)


def _layout_of(
    plan: Plan, replica: Replica, figures: Figures, device: Device, wanted: SpeedRequest, replicas: int
) -> Layout:
    targets, is_named = wanted.targets, wanted.load is not None
    speed = estimate_of(replica, figures, wanted.named_load, replicas, is_named=is_named)
    kept = surely = 1.0
    if targets:
        kept = figures.kept_share(targets)
        surely = figures.kept_share(targets, speed.ttft.high, speed.latency.high)
    ranks = plan.placement.num_ranks
    return Layout(plan, speed, replicas, kept, surely, price_of(device, ranks * replicas, speed, wanted.prices))


def device_for(hardware: Hardware, plan: Plan) -> Device:
    return hardware.cpu_device if plan.on_cpu or not hardware.devices else hardware.devices[0]
