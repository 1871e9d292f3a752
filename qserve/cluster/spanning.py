"""Models larger than a node: one vLLM over several nodes, tensor-parallel within each, a pipeline stage on each.

vLLM's Ray executor reserves the cards itself, in one placement group of its own. The agent beside its API server takes
a CPU, and tells it where the cluster is.
"""

from __future__ import annotations

import os
from collections.abc import Callable, MutableMapping
from dataclasses import replace
from typing import TypeVar

from qserve.core.hardware import Hardware
from qserve.errors import DoesNotFit
from qserve.planner.engine import changed_request
from qserve.planner.request import PlanRequest

__all__ = ["ENGINE_ARGS", "over_nodes", "planned_over_nodes", "set_vllm_environment"]

ENGINE_ARGS = "--distributed-executor-backend ray"
_Planned = TypeVar("_Planned")


def over_nodes(hardware: Hardware, request: PlanRequest, count: int) -> tuple[Hardware, PlanRequest]:
    """`count` nodes of `hardware` as one machine, and the request that lays a model over them."""
    cards = len(hardware.devices)
    together = replace(hardware, devices=hardware.devices * count)
    return together, changed_request(request, engine="vllm", tensor_parallel_size=cards, pipeline_parallel_size=count)


def planned_over_nodes(
    plan: Callable[[Hardware, PlanRequest], _Planned], hardware: Hardware, request: PlanRequest, num_nodes: int
) -> tuple[_Planned, int]:
    """What `plan` makes of the fewest nodes that hold the model, and their number. Raises DoesNotFit."""
    refused = DoesNotFit("the model does not fit one node, and there is no other one")
    for count in range(2, num_nodes + 1):
        try:
            return plan(*over_nodes(hardware, request, count)), count
        except DoesNotFit as error:
            refused = error
    raise refused


def set_vllm_environment(gcs_address: str, host: str, environment: MutableMapping[str, str] = os.environ) -> None:
    """What the vLLM server of this process is to know of the cluster: its address, and this node's.

    Ray hides the cards from an actor that asked for none; the ranks see theirs, and the server may see all.
    """
    environment.pop("CUDA_VISIBLE_DEVICES", None)
    environment["RAY_ADDRESS"] = gcs_address
    environment["VLLM_HOST_IP"] = host
