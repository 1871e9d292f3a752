"""The plans of the servers that `qserve up` starts of one model: as many as asked for, or as the load wants."""

from __future__ import annotations

from qserve.core.checkpoint import Checkpoint
from qserve.core.hardware import Hardware
from qserve.planner.fits import check_fits
from qserve.planner.replicas import AUTO, NumReplicas, ReplicaPlan, plan_replicas, spread
from qserve.planner.request import PlanRequest
from qserve.planner.speed.estimate import replicas_of
from qserve.planner.speed.plan import plan_for_load
from qserve.planner.speed.request import SpeedRequest

__all__ = ["plan_served"]


def plan_served(
    checkpoint: Checkpoint, hardware: Hardware, request: PlanRequest, count: NumReplicas | None, speed: SpeedRequest
) -> list[ReplicaPlan]:
    """A plan for each replica of a chat model that has the machine for itself; a load decides the layout.

    Raises DoesNotFit or UsageError.
    """
    if speed.load is None or (not hardware.devices and count not in (None, 1, AUTO)):
        return plan_replicas(checkpoint, hardware, request, count or 1)
    plan = check_fits(plan_for_load(checkpoint, hardware, request, speed))
    return spread(plan, hardware, replicas_of(plan))
