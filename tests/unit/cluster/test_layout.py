"""Replicas over nodes: what a node is planned for, what all of them hold, where the next one goes."""

from __future__ import annotations

from pathlib import Path

import pytest

from qserve.cluster.layout import Counts, counts_per_node, needs_of, spread_over
from qserve.cluster.nodes import Node, common_hardware, of_one_kind
from qserve.cluster.placement import emptiest
from qserve.cluster.settings import Bounds, PortRange
from qserve.core.hardware import Device, Hardware, parse_gpu
from qserve.errors import DoesNotFit, UsageError
from qserve.hub import resolve
from qserve.planner import PlanRequest, make_plan
from qserve.service.replicas import AUTO
from qserve.supervisor.deployment import ModelDeployment
from qserve.units import GIB

CPU_NODE = Hardware((), 32 * GIB, 30 * GIB, 8)


def node(name: str, cards: str = "", num_cpus: float = 8.0, hardware: Hardware = CPU_NODE) -> Node:
    devices: tuple[Device, ...] = parse_gpu(cards) if cards else ()
    machine = Hardware(devices, hardware.ram_total_bytes, hardware.ram_available_bytes, hardware.cpu_cores)
    return Node(name, f"10.0.0.{name}", num_cpus, float(len(devices)), machine)


def deployment(on: Node) -> ModelDeployment:
    plan = make_plan(resolve("Qwen/Qwen3-0.6B"), on.hardware, PlanRequest(engine="transformers", max_model_len=512))
    return ModelDeployment("chat", Path("/models/x"), ("x",), plan)


def test_nodes_of_the_kind_with_most_memory_serve() -> None:
    nodes = [node("1", "rtx-4090:2"), node("2", "h100-80gb:8"), node("3", "h100-80gb:8"), node("4")]
    assert [one.id for one in of_one_kind(nodes)] == ["2", "3"]


def test_a_replica_is_planned_for_the_smallest_node_it_may_come_to() -> None:
    small = Hardware((), 32 * GIB, 8 * GIB, 4)
    common = common_hardware([node("1"), node("2", hardware=small)])
    assert (common.ram_available_bytes, common.cpu_cores) == (8 * GIB, 4)
    cards = common_hardware([node("1", "memory=24GiB,sm=128,used=1GiB"), node("2", "memory=24GiB,sm=128,used=6GiB")])
    assert cards.devices[0].available_bytes == 18 * GIB


@pytest.mark.parametrize(
    ("replicas", "bounds", "per_node"), [(None, None, 1), (AUTO, None, 1), (4, None, 2), (None, Bounds(1, 5), 3)]
)
def test_cpus_are_shared_by_the_most_replicas_that_there_may_be(
    replicas: int | None, bounds: Bounds | None, per_node: int
) -> None:
    assert counts_per_node([node("1"), node("2")], replicas, bounds, 1) == Counts(per_node, 1)


def test_cards_hold_as_many_as_the_plan_says() -> None:
    assert counts_per_node([node("1", "h100-80gb:8")], 3, None, 1).chat == AUTO


def test_each_replica_has_a_name_and_a_share_of_the_cores() -> None:
    nodes = [node("1"), node("2")]
    spread = spread_over(nodes, [deployment(nodes[0])] * 2, 3, None, 1)
    assert [one.name for one in spread] == ["chat-0", "chat-1", "chat-2"]
    assert needs_of(spread[0]) == {"CPU": 4.0}


def test_a_card_is_asked_for_where_the_plan_takes_one() -> None:
    nodes = [node("1", "rtx-4090")]
    (only,) = spread_over(nodes, [deployment(nodes[0])], None, None, 1)
    assert needs_of(only) == {"CPU": 1.0, "GPU": 1.0}


def test_more_than_the_cluster_has_is_one_sentence() -> None:
    nodes = [node("1", "rtx-4090"), node("2", "rtx-4090")]
    with pytest.raises(
        DoesNotFit, match=r"--replicas 3: the cluster has room for 2, 1 on each of 2 nodes; lower --replicas"
    ):
        spread_over(nodes, [deployment(nodes[0])], 3, None, 1)
    with pytest.raises(DoesNotFit, match=r"--min-replicas 3: the cluster has room for 2, .*; lower --min-replicas"):
        spread_over(nodes, [deployment(nodes[0])], None, Bounds(3, 5), 1)


def test_bounds_may_ask_for_what_further_nodes_bring() -> None:
    nodes = [node("1", "rtx-4090")]
    assert len(spread_over(nodes, [deployment(nodes[0])], None, Bounds(1, 4), 1)) == 4


def test_more_replicas_than_cpus_is_one_sentence() -> None:
    nodes = [node("1", num_cpus=1.0)]
    with pytest.raises(DoesNotFit, match="take a CPU each, and Ray may give 1 away"):
        spread_over(nodes, [deployment(nodes[0])] * 2, 2, None, 1)


def test_the_next_replica_goes_where_the_fewest_are() -> None:
    nodes = {"a": {"CPU": 4.0}, "b": {"CPU": 4.0}, "c": {"CPU": 1.0}}
    needs = {"CPU": 2.0}
    assert emptiest(nodes, {"a": [needs]}, needs, set()) == "b"
    assert emptiest(nodes, {"a": [needs]}, needs, {"b"}) == "a"
    assert emptiest(nodes, {"a": [needs, needs], "b": [needs, needs]}, needs, set()) is None


@pytest.mark.parametrize("text", ["20000", "a-b", "1-2", "30000-20000", "20000-70000"])
def test_what_is_no_range_of_ports_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--ray-ports"):
        PortRange.parse(text)
