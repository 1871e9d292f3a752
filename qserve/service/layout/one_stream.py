"""The speed of a plan for which no load was named: one stream, and what other layouts of all cards would do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from qserve.core.checkpoint import Checkpoint
from qserve.core.hardware import Hardware
from qserve.planner.engine import changed_request, option_value
from qserve.planner.plan import Plan
from qserve.planner.request import PlanRequest
from qserve.planner.speed.calibration import Measured
from qserve.planner.speed.estimate import estimate_speed, is_launch_bound
from qserve.planner.speed.terms.engine_costs import has_speed
from qserve.service.layout.fitting_plans import FittingPlans
from qserve.service.layout.if_fitted import with_speed_if_fitted
from qserve.service.layout.search import Layout, device_for, layout_of, pareto, with_rate
from qserve.service.load import SpeedRequest
from qserve.service.replicas import num_engines
from qserve.units import format_ms

__all__ = ["with_layouts", "with_one_stream"]

_NEARLY = 1.05
"""What is better by less than this is not worth a sentence."""


def with_one_stream(
    plan: Plan, checkpoint: Checkpoint, hardware: Hardware, request: PlanRequest, measured: Measured
) -> Plan:
    """The plan with the `speed` of a single stream, which it has or would have if it fitted; as it is where its engine
    is not known.
    """
    if not has_speed(plan.engine):
        return plan
    if not plan.fits:
        return with_speed_if_fitted(plan, checkpoint, hardware, request, SpeedRequest(measured=measured))
    device = device_for(hardware, plan)
    speed = estimate_speed(plan, checkpoint.spec, device, None, measured=measured)
    return replace(plan, speed={**speed.to_json(), "alternatives": []})


def with_layouts(
    plan: Plan, checkpoint: Checkpoint, hardware: Hardware, request: PlanRequest, wanted: SpeedRequest
) -> Plan:
    """`with_one_stream`, and where there are more cards whose layout is the planner's the others that leave
    `max_model_len` whole: the shortest TPOT first, then by the highest rate.

    The plan stays as memory asks for: whoever names no load has not said that the other cards are free.
    """
    told = with_one_stream(plan, checkpoint, hardware, request, wanted.measured)
    if told.speed is None or not plan.fits or not _is_open(plan, hardware, request):
        return told
    chosen, others = _counted(plan, checkpoint, hardware, request, wanted)
    if not others:
        return told
    quick = _NEARLY * min(one.speed.figures.tpot_ms.mean for one in others)
    ordered = sorted(others, key=lambda one: (max(quick, one.speed.figures.tpot_ms.mean), -(one.speed.max_rps or 0.0)))
    front = pareto([chosen, *others])
    rows = [one.to_json(chosen, id(one) in front) for one in (chosen, *ordered)]
    notes = [*told.speed["notes"], *_better(chosen, others)]
    return replace(told, speed={**told.speed, "alternatives": rows, "notes": notes})


def _is_open(plan: Plan, hardware: Hardware, request: PlanRequest) -> bool:
    is_fixed = any(option_value(request, f"{kind}_parallel_size") for kind in ("tensor", "pipeline"))
    return len(hardware.devices) > 1 and not (plan.on_cpu or is_launch_bound(plan) or is_fixed or num_engines(plan) > 1)


def _counted(
    plan: Plan, checkpoint: Checkpoint, hardware: Hardware, request: PlanRequest, wanted: SpeedRequest
) -> tuple[Layout, list[Layout]]:
    """The plan as one server, and every number of ranks as many times as the cards hold it, a stream on each."""
    is_stored = checkpoint.spec.quantization is not None
    same = changed_request(request, quant=request.quant if is_stored else plan.quant.scheme)
    spec, cards = checkpoint.spec, len(hardware.devices)

    def counted(one: Plan, replicas: int) -> Layout:
        device, streams = device_for(hardware, one), replace(wanted, replicas=replicas)
        return with_rate(layout_of(one, spec, device, streams, replicas), spec, device, streams)

    whole = [
        one
        for one in FittingPlans(checkpoint).of(hardware, same)
        if one.quant.scheme == plan.quant.scheme and one.workload.max_model_len >= plan.workload.max_model_len
    ]
    others = [counted(one, cards // one.placement.num_ranks) for one in whole if one.placement.num_ranks <= cards]
    return counted(plan, 1), [
        one for one in others if (one.plan.placement.num_ranks, one.replicas) != (plan.placement.num_ranks, 1)
    ]


def _better(chosen: Layout, others: list[Layout]) -> Iterator[str]:
    """What the cards that stay free would give to one user, and to many."""
    quickest = min(others, key=lambda one: one.speed.figures.tpot_ms.mean)
    mine, its = chosen.speed.figures.tpot_ms.mean, quickest.speed.figures.tpot_ms.mean
    if its * _NEARLY < mine:
        yield (
            f"Fastest for one user: {quickest.name}, {format_ms(its)} a token instead of {format_ms(mine)} "
            f"({_flags(quickest)})"
        )
    widest = max(others, key=lambda one: one.speed.max_rps or 0.0)
    most, rate = widest.speed.max_rps or 0.0, chosen.speed.max_rps or 0.0
    if most > rate * _NEARLY and widest is not quickest:
        yield (f"Most requests: {widest.name}, {most:.1f} a second instead of {rate:.1f} ({_flags(widest)})")


def _flags(layout: Layout) -> str:
    placement = layout.plan.placement
    stages = (
        f" --pipeline-parallel-size {placement.pipeline_parallel_size}" if placement.pipeline_parallel_size > 1 else ""
    )
    copies = f" --replicas {layout.replicas}" if layout.replicas > 1 else ""
    return f"--tensor-parallel-size {placement.tensor_parallel_size}{stages}{copies}"
