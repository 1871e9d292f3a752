"""The plan of a service on one node of a cluster; of a model that is larger than a node, on several."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from qserve.cluster.spanning import ENGINE_ARGS, planned_over_nodes
from qserve.core.hardware import Hardware
from qserve.errors import DoesNotFit
from qserve.planner.request import PlanRequest
from qserve.service.knowledge import Knowledge
from qserve.service.machine import Machine
from qserve.service.plan import ServicePlan, plan_service
from qserve.service.request import ServiceRequest

__all__ = ["plan_node"]


def plan_node(request: ServiceRequest, node: Hardware, num_nodes: int, folder: Path) -> tuple[ServicePlan, int]:
    """What one `node` hosts of the `request`, and over how many of `num_nodes` a replica of the chat model spreads.

    Measurements of this machine do not hold for the nodes. `folder`: as of `plan_service`. Raises what that raises, and
    DoesNotFit.
    """

    def planned(hardware: Hardware, plan: PlanRequest) -> ServicePlan:
        service = plan_service(replace(request, plan=plan), Machine.node(hardware), Knowledge(), folder)
        service.check_fits()
        return service

    try:
        return planned(node, request.plan), 1
    except DoesNotFit:
        if not node.devices or num_nodes < 2:
            raise
    service, count = planned_over_nodes(planned, node, request.plan, num_nodes)
    arguments = f"{ENGINE_ARGS} {request.engine_args}".strip()
    return replace(service, request=replace(service.request, engine_args=arguments)), count
