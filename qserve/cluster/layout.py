"""Replicas over the nodes of a cluster: how many a node is planned for, and what each asks Ray for. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from qserve.cluster.nodes import Node
from qserve.cluster.settings import Bounds
from qserve.errors import DoesNotFit
from qserve.service.replicas import AUTO, NumReplicas
from qserve.supervisor.deployment import ModelDeployment

__all__ = ["Counts", "counts_per_node", "needs_of", "spread_over"]


@dataclass(frozen=True)
class Counts:
    """Replicas of the chat and of the reward model."""

    chat: NumReplicas
    reward: int


def counts_per_node(nodes: Sequence[Node], replicas: NumReplicas | None, bounds: Bounds | None, reward: int) -> Counts:
    """What one node is planned for: as many as its cards hold, or on CPUs its share of all."""
    share = -(-reward // len(nodes))
    if nodes[0].hardware.devices and nodes[0].num_gpus >= 1:
        return Counts(AUTO, share)
    most = bounds.most if bounds is not None else replicas
    return Counts(1 if most in (None, AUTO) else -(-most // len(nodes)), share)


def spread_over(
    nodes: Sequence[Node],
    deployments: Sequence[ModelDeployment],
    replicas: NumReplicas | None,
    bounds: Bounds | None,
    reward: int,
) -> list[ModelDeployment]:
    """The replicas of all nodes, from those that were planned for one.

    Raises DoesNotFit for more than the cluster has; what `bounds` allow beyond it, further nodes may bring.
    """
    planned = {role: [one for one in deployments if one.role == role] for role in ("chat", "reward", "embed")}
    cores = max(1, min(int(node.num_cpus) for node in nodes) // max(1, sum(one.plan.on_cpu for one in deployments)))
    spread: list[ModelDeployment] = []
    for role, ones in planned.items():
        if not ones:
            continue
        held = len(ones) * len(nodes) if ones[0].num_nodes == 1 else 1
        counted = reward if role != "chat" else held if replicas == AUTO else replicas or 1
        most = counted
        if role == "chat" and bounds is not None:
            counted, most = bounds.fewest, bounds.most
        if counted > held:
            flag = f"--{role}-replicas" if role != "chat" else "--replicas" if bounds is None else "--min-replicas"
            raise DoesNotFit(_too_many(flag, counted, held, nodes))
        spread += [
            replace(ones[0], cards=None, num_cores=cores if ones[0].plan.on_cpu else None, index=at, num_replicas=most)
            for at in range(most)
        ]
    _check_cpus(nodes, deployments)
    return spread


def needs_of(deployment: ModelDeployment) -> dict[str, float]:
    """What a replica asks Ray for; over several nodes vLLM asks for their cards itself."""
    if deployment.num_nodes > 1:
        return {"CPU": 1.0}
    if deployment.plan.on_cpu:
        return {"CPU": float(deployment.num_cores or 1)}
    return {"CPU": 1.0, "GPU": float(len(deployment.plan.devices))}


def _check_cpus(nodes: Sequence[Node], deployments: Sequence[ModelDeployment]) -> None:
    fewest = min(nodes, key=lambda node: node.num_cpus)
    if len(deployments) > fewest.num_cpus:
        raise DoesNotFit(
            f"{len(deployments)} replicas on each node take a CPU each, and Ray may give {fewest.num_cpus:g} away at "
            f"{fewest.address}; lower --replicas, or add nodes"
        )


def _too_many(flag: str, counted: int, held: int, nodes: Sequence[Node]) -> str:
    each = f"{held // len(nodes)} on each of {len(nodes)} nodes" if held >= len(nodes) else "which takes several nodes"
    return f"{flag} {counted}: the cluster has room for {held}, {each}; lower {flag}, or add nodes"
