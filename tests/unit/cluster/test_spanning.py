"""A model larger than a node: the fewest nodes that hold it, and the flags that vLLM gets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from qserve.cluster.layout import needs_of, spread_over
from qserve.cluster.nodes import Node
from qserve.cluster.planning import plan_node
from qserve.cluster.spanning import ENGINE_ARGS, planned_over_nodes, set_vllm_environment
from qserve.core.hardware import Hardware
from qserve.detect.packages import Packages
from qserve.engines.vllm.launch.command import command
from qserve.errors import DoesNotFit
from qserve.planner import Plan, PlanRequest, make_plan, plan_request
from qserve.planner.fits import check_fits
from qserve.service.request import ServiceRequest
from qserve.supervisor.deployment import ModelDeployment
from tests.unit.engines.vllm.builders import DEMO, checkpoint, hardware, pairs, parser_for, spec_of

NODE = hardware("rtx-4090:2")
PACKAGES = Packages({"vllm": "0.32.0", "torch": "2.13.0", "transformers": "5.19.0"})
REQUEST = plan_request(engine="vllm", quant="bf16", max_model_len=4096)


def plan_on(machine: Hardware, request: PlanRequest) -> Plan:
    return check_fits(make_plan(checkpoint("Qwen/Qwen3-32B"), machine, request))


def test_a_model_takes_the_fewest_nodes_that_hold_it() -> None:
    with pytest.raises(DoesNotFit):
        plan_on(NODE, REQUEST)
    plan, count = planned_over_nodes(plan_on, NODE, REQUEST, 4)
    assert count == 2
    placement = plan.placement
    assert (placement.tensor_parallel_size, placement.pipeline_parallel_size) == (2, 2)


def test_a_service_says_over_how_many_nodes_and_keeps_the_users_own_flags(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(Packages, "installed", classmethod(lambda cls: PACKAGES))
    options = {"model": "Qwen/Qwen3-32B", "quant": "bf16", "max_model_len": 4096, "load_format": "dummy"}
    request = ServiceRequest.from_flags({**options, "engine_args": "--seed 1"})
    service, count = plan_node(request, NODE, 4, tmp_path)
    assert (count, service.request.engine_args) == (2, f"{ENGINE_ARGS} --seed 1")
    assert service.chat is not None and service.chat.whole.engine == "vllm"
    smaller = replace(request, model="Qwen/Qwen3-8B")
    service, count = plan_node(smaller, NODE, 4, tmp_path)
    assert (count, service.request.engine_args) == (1, "--seed 1"), "one node holds it"
    with pytest.raises(DoesNotFit):
        plan_node(request, NODE, 1, tmp_path)


def test_what_no_cluster_holds_is_refused_in_the_planners_words() -> None:
    tiny = hardware("memory=4GiB,sm=128")
    with pytest.raises(DoesNotFit, match="Qwen"):
        planned_over_nodes(plan_on, tiny, REQUEST, 2)


def test_vllm_gets_the_layout_and_its_ray_executor() -> None:
    plan, _ = planned_over_nodes(plan_on, NODE, REQUEST, 4)
    started = command(spec_of(plan, DEMO), parser_for("0.32.0"), ENGINE_ARGS, environ={})
    flags = pairs(started.argv)
    assert flags["--distributed-executor-backend"] == "ray"
    assert (flags["--tensor-parallel-size"], flags["--pipeline-parallel-size"]) == ("2", "2")


def test_it_runs_once_and_leaves_its_cards_to_vllm() -> None:
    plan, count = planned_over_nodes(plan_on, NODE, REQUEST, 4)
    nodes = [Node(name, f"10.0.0.{name}", 8.0, 2.0, NODE) for name in "1234"]
    deployment = ModelDeployment("chat", DEMO, ("x",), plan, engine_args=ENGINE_ARGS, num_nodes=count)
    (only,) = spread_over(nodes, [deployment], None, None, 1)
    assert needs_of(only) == {"CPU": 1.0}
    with pytest.raises(DoesNotFit, match="--replicas 2: the cluster has room for 1, which takes several nodes"):
        spread_over(nodes, [deployment], 2, None, 1)


def test_the_server_is_told_where_the_cluster_is() -> None:
    environment = {"CUDA_VISIBLE_DEVICES": "", "PATH": "/bin"}
    set_vllm_environment("10.0.0.1:6379", "10.0.0.2", environment)
    assert environment == {"RAY_ADDRESS": "10.0.0.1:6379", "VLLM_HOST_IP": "10.0.0.2", "PATH": "/bin"}
