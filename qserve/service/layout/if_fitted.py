"""The speed that a plan would have if it fitted: memory decides what starts, and not how long a step takes."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from qserve.core.checkpoint import Checkpoint
from qserve.core.hardware import Hardware
from qserve.errors import QserveError
from qserve.planner.engine import engine_named
from qserve.planner.make import make_plan
from qserve.planner.plan import Plan
from qserve.planner.request import PlanRequest
from qserve.planner.speed.estimate import ONE_STREAM
from qserve.planner.speed.load import Load
from qserve.planner.speed.rate import KEPT_SHARE
from qserve.planner.speed.simulated import WATERMARK
from qserve.planner.speed.terms.engine_costs import has_speed
from qserve.service.layout.search import Layout, device_for, layout_of, with_rate
from qserve.service.load import SpeedRequest
from qserve.units import format_count

__all__ = ["targets_json", "with_speed_if_fitted"]

_BLOCK_TOKENS = 16
"""Of a KV block as engines choose it by themselves: a sequence takes whole ones."""


def with_speed_if_fitted(
    plan: Plan, checkpoint: Checkpoint, hardware: Hardware, request: PlanRequest, wanted: SpeedRequest
) -> Plan:
    """A plan that does not fit, with the `speed` that it would have: of the load, without one of a single stream.

    The limits are those that were asked for or that the engine takes by itself: a plan that does not fit was tried with
    the smallest ones. The KV cache holds every request that runs at once. Prices are left out, since these cards do not
    hold the model. Of several replicas each has its share of the cards, where the plan takes all of them for one. As it
    is where its engine's speed is not known.
    """
    if plan.fits or not has_speed(plan.engine):
        return plan
    asked, device = wanted.replicas or 1, device_for(hardware, plan)
    one = _of_a_replica(plan, checkpoint, hardware, request, asked)
    held = max(1, len(hardware.devices) // one.placement.num_ranks)  # the plan may take the cards of several
    wanted = replace(wanted, replicas=min(asked, held))
    roomy = _with_room(engine_named(one.engine).planner.unbounded(one, device, request), wanted)
    layout = layout_of(roomy, checkpoint.spec, device, wanted, wanted.replicas or 1)
    if wanted.load is not None:
        layout = with_rate(layout, checkpoint.spec, device, wanted)
    speed = layout.speed.to_json()
    assumed = f"Counted as if the weights and a KV cache of {format_count(roomy.kv_cache_tokens)} tokens fitted"
    found = {
        **speed,
        "if_fitted": True,
        "notes": [assumed, *_counted(one, asked, held), *speed["notes"]],
        "alternatives": [],
        **({} if wanted.load is None else {"targets": targets_json(layout, wanted), "suggestions": []}),
    }
    return replace(plan, speed=found)


def _of_a_replica(plan: Plan, checkpoint: Checkpoint, hardware: Hardware, request: PlanRequest, replicas: int) -> Plan:
    """The plan on the cards that each of the replicas would have; as it is where it takes no more than these."""
    each = len(hardware.devices) // replicas
    if plan.on_cpu or not 0 < each < plan.placement.num_ranks:
        return plan
    share = replace(hardware, devices=hardware.devices[:each])
    try:
        one = make_plan(checkpoint, share, request, with_suggestions=False)
    except QserveError:  # the number of cards a server is fixed, and the replicas have fewer
        return plan
    return plan if one.on_cpu or not has_speed(one.engine) else one


def _counted(one: Plan, asked: int, held: int) -> tuple[str, ...]:
    """What the speed is of, where several replicas were asked for."""
    ranks = one.placement.num_ranks
    if asked == 1:
        return ()
    if held < asked:
        return (f"Counted for {held} of {asked} replicas, cards of each: {ranks}; there are no cards for more",)
    return (f"Counted for {asked} replicas, cards of each: {ranks}",)


def targets_json(layout: Layout, wanted: SpeedRequest) -> dict[str, Any] | None:
    """The object under "targets" of a plan for a load; None where none are named."""
    if not wanted.targets:
        return None
    return {
        "ttft_ms": wanted.targets.ttft_ms,
        "tpot_ms": wanted.targets.tpot_ms,
        "kept_share": round(layout.kept, 3),
        "met": layout.kept >= KEPT_SHARE,
    }


def _with_room(plan: Plan, wanted: SpeedRequest) -> Plan:
    """With a KV cache for all requests that run at once under the load, or for what the plan's limits name."""
    load: Load = (wanted.load or ONE_STREAM).shared_by(wanted.replicas or 1)
    open_at_once = load.streams or load.burst or plan.workload.max_num_seqs
    blocks = math.ceil(load.most_tokens / _BLOCK_TOKENS) * min(open_at_once, plan.workload.max_num_seqs)
    held = math.ceil(blocks / (1 - WATERMARK)) * _BLOCK_TOKENS
    return replace(plan, kv_cache_tokens=max(plan.kv_cache_tokens, plan.workload.max_model_len, held))
