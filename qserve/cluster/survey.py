"""Surveys the nodes of a cluster: their hardware, whether they can serve, and whether they have the checkpoint."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from qserve.cluster.checkpoints import Location, key_of
from qserve.cluster.join import ray_module
from qserve.cluster.nodes import Node
from qserve.cluster.probe import NodeFacts, Probe, is_reachable
from qserve.cluster.settings import PortRange
from qserve.errors import UsageError, WorkerFailed
from qserve.version import __version__

__all__ = ["Survey", "checked", "surveyed"]

_ANSWER_S = 120.0
_CONNECT_S = 5.0
_NODES_S = 600.0
_LOOK_S = 0.5


class Survey:
    """A probe on every node that is alive. Use `surveyed`."""

    def __init__(self, ports: PortRange, num_nodes: int) -> None:
        """Waits for `num_nodes`. Raises WorkerFailed where a node does not answer, UsageError where it can't serve."""
        ray = ray_module()
        self._ray = ray
        self._alive = _able_nodes(ray, num_nodes)
        self._probes = {one["NodeID"]: _probe_on(ray, one["NodeID"]) for one in self._alive}
        try:
            self.nodes = self._look(ports)
        except BaseException:
            self.close()
            raise

    def find(self, folder: Path, name: str, nodes: Sequence[Node]) -> dict[Location, list[str]]:
        """Addresses of nodes by how they get at the checkpoint. Raises UsageError where one can't."""
        wanted = key_of(folder)
        asked = [(node.address, self._probes[node.id].find.remote(folder, name, wanted)) for node in nodes]
        ways: dict[Location, list[str]] = {}
        for address, ref in asked:
            ways.setdefault(self._answer(address, ref), []).append(address)
        return checked(ways, folder)

    def close(self) -> None:
        """The probes end."""
        for probe in self._probes.values():
            self._ray.kill(probe)
        self._probes = {}

    def _look(self, ports: PortRange) -> list[Node]:
        facts = {one["NodeID"]: self._probes[one["NodeID"]].facts.remote() for one in self._alive}
        nodes = [self._node(one, self._answer(one["NodeManagerAddress"], facts[one["NodeID"]])) for one in self._alive]
        opened = [(node.address, self._probes[node.id].open.remote(node.address, ports)) for node in nodes]
        for address, ref in opened:
            port = self._answer(address, ref)
            if not is_reachable(address, port, _CONNECT_S):
                raise WorkerFailed(
                    f"the node {address} listens on port {port}, and it can't be reached from here; open the ports "
                    f"{ports} between the nodes, or choose others with --ray-ports"
                )
        return nodes

    def _node(self, one: dict[str, Any], facts: NodeFacts) -> Node:
        address, resources = one["NodeManagerAddress"], one["Resources"]
        if facts.qserve != __version__:
            raise UsageError(
                f"the node {address} has qserve {facts.qserve}, and this is {__version__}; install the same one there"
            )
        return Node(
            one["NodeID"], address, float(resources.get("CPU", 0)), float(resources.get("GPU", 0)), facts.hardware
        )

    def _answer(self, address: str, ref: Any) -> Any:
        ray = self._ray
        try:
            return ray.get(ref, timeout=_ANSWER_S)
        except ray.exceptions.GetTimeoutError as error:
            raise WorkerFailed(
                f"the node {address} did not start a process for qserve within {_ANSWER_S:g} s; `ray status` says more"
            ) from error
        except ray.exceptions.RayTaskError as error:
            cause = error.as_instanceof_cause()
            raise WorkerFailed(f"the node {address}: {' '.join(str(error.cause or cause).split())[:300]}") from error
        except ray.exceptions.RayError as error:
            raise WorkerFailed(
                f"the node {address} could not run qserve's probe; its Python needs the same qserve and its packages "
                f"({' '.join(str(error).split())[:200]})"
            ) from error


def checked(ways: dict[Location, list[str]], folder: Path) -> dict[Location, list[str]]:
    """`ways`, unless a node has no way to the checkpoint: raises UsageError."""
    for way, what in ((Location.MISSING, f"has no {folder}"), (Location.OTHER, f"has another checkpoint at {folder}")):
        if way in ways:
            others = f" (as {len(ways[way]) - 1} others)" if len(ways[way]) > 1 else ""
            raise UsageError(
                f"the node {ways[way][0]} {what}{others}; put it on a path that all nodes share, copy it there, or "
                "name a hub id, which each node fetches itself"
            )
    return ways


@contextlib.contextmanager
def surveyed(ports: PortRange, num_nodes: int) -> Iterator[Survey]:
    """A survey whose probes are gone afterwards."""
    survey = Survey(ports, num_nodes)
    try:
        yield survey
    finally:
        survey.close()


def _able_nodes(ray: Any, count: int) -> list[dict[str, Any]]:
    """Nodes on which Ray has a CPU to give away: a head is often kept free of work by --num-cpus=0."""
    deadline_s = time.monotonic() + _NODES_S
    while True:
        able = [one for one in ray.nodes() if one["Alive"] and one["Resources"].get("CPU", 0) >= 1]
        if len(able) >= count:
            return able
        if time.monotonic() > deadline_s:
            raise WorkerFailed(
                f"the cluster has {len(able)} nodes that can run a worker after {_NODES_S:g} s, and --ray-nodes waits "
                f"for {count}; nodes started with --num-cpus=0 do not count"
            )
        time.sleep(_LOOK_S)


def _probe_on(ray: Any, node: str) -> Any:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    # No CPU: a node whose CPUs are all taken can be asked, too.
    where = NodeAffinitySchedulingStrategy(node, soft=False)
    return ray.remote(Probe).options(num_cpus=0, max_concurrency=2, scheduling_strategy=where).remote()
