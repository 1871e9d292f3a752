"""`qserve up --ray`: its options, and the plan of what is hosted on the nodes of a cluster."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from qserve.cli.options.numbers import Count, FiniteRange, number_option
from qserve.core.hardware import Hardware
from qserve.errors import UsageError
from qserve.hub.cache import commit_of
from qserve.hub.revisions import at_revision
from qserve.service.replicas import NumReplicas

if TYPE_CHECKING:
    from qserve.cluster.nodes import Node
    from qserve.cluster.runner import RayRunner
    from qserve.cluster.settings import Bounds, RaySettings
    from qserve.cluster.survey import Survey
    from qserve.service.plan import ServicePlan
    from qserve.service.request import ServiceRequest
    from qserve.supervisor import ModelDeployment
    from qserve.supervisor.screen import Screen

__all__ = ["CLUSTER_FLAGS", "Cluster", "joined_cluster", "ray_options"]

Function = TypeVar("Function", bound=Callable[..., Any])
CLUSTER_FLAGS = ("ray_ports", "ray_nodes", "min_replicas", "max_replicas", "scale_down_after")
_PRIVATE = "requests to the nodes are plain HTTP, under a key for each worker: keep them on a private network"
_OPTIONS = (
    click.option(
        "--ray",
        help="Run the workers on the nodes of this Ray cluster: auto, the one that this machine is in, or HOST:PORT.",
    ),
    click.option(
        "--ray-ports",
        default="20000-20999",
        show_default=True,
        help="Ports on which workers listen on the nodes; the gateway must reach them.",
    ),
    number_option("--ray-nodes", Count(min=1), 1, "Nodes to wait for before the plan is made."),
    click.option("--min-replicas", type=Count(min=1, max=1024), help="With --ray: fewest replicas [1]."),
    click.option(
        "--max-replicas", type=Count(min=1, max=1024), help="With --ray: most replicas, started as the load requires."
    ),
    number_option(
        "--scale-down-after", FiniteRange(min=1), 180.0, "Seconds of low load after which a replica is stopped."
    ),
)


def ray_options(function: Function) -> Function:
    """Adds them to a command."""
    for decorate in reversed(_OPTIONS):
        function = decorate(function)
    return function


@dataclass(frozen=True)
class Cluster:
    """A joined Ray cluster with the survey of its nodes; `replicas`: the value of --replicas."""

    settings: RaySettings
    survey: Survey
    nodes: Sequence[Node]
    hardware: Hardware
    replicas: NumReplicas | None
    bounds: Bounds | None

    def planned(self, request: ServiceRequest, configs: Path) -> tuple[ServicePlan, int]:
        """What one node hosts of the `request`, and over how many a replica spreads. Raises as `plan_node` does."""
        from qserve.cluster.layout import counts_per_node
        from qserve.cluster.planning import plan_node

        counts = counts_per_node(self.nodes, self.replicas, self.bounds, request.num_rewards)
        reward = None if request.reward is None else replace(request.reward, replicas=max(1, counts.reward))
        of_node = replace(request, replicas=counts.chat, reward=reward)
        return plan_node(of_node, self.hardware, len(self.nodes), configs)

    def spread(
        self, deployments: Sequence[ModelDeployment], reward_replicas: int, screen: Screen
    ) -> list[ModelDeployment]:
        """Replicas over all nodes; prints where each node finds the checkpoint. Raises DoesNotFit or UsageError."""
        from qserve.cluster.layout import spread_over

        _refuse_served_judges(deployments)
        spread = spread_over(self.nodes, deployments, self.replicas, self.bounds, reward_replicas)
        screen.note(_words(self.nodes))
        screen.note(_PRIVATE)
        for role, name in checkpoint_names(deployments).items():
            folder = next(one.folder for one in deployments if one.role == role)
            ways = self.survey.find(folder.resolve(), name, self.nodes)
            found = "; ".join(f"{way.value}: {', '.join(addresses)}" for way, addresses in ways.items())
            screen.note(f"checkpoint of the {role} model: {found}")
        self.survey.close()
        return spread

    def runner(self, deployments: Sequence[ModelDeployment]) -> RayRunner:
        """The runner that starts workers on the nodes."""
        from qserve.cluster.runner import RayRunner

        return RayRunner(self.settings, self.bounds, checkpoint_names(deployments))


def checkpoint_names(deployments: Sequence[ModelDeployment]) -> dict[str, str]:
    """The name of the checkpoint for nodes, by role; "" for a folder of the user's."""
    names = {"chat": "", "reward": "", "embed": ""}
    for one in deployments:
        name = one.plan.quant.checkpoint
        if one.role == "chat" and not Path(name).expanduser().is_dir():
            names["chat"] = at_revision(name, commit_of(one.folder))
    return {one.role: names[one.role] for one in deployments}


@dataclass(frozen=True)
class _ClusterFlags:
    """What was given of the cluster, by the names of the options."""

    ray: str | None
    ray_ports: str
    ray_nodes: int
    min_replicas: int | None
    max_replicas: int | None
    scale_down_after: float
    replicas: NumReplicas | None
    gpu: str | None

    @property
    def bounds(self) -> Bounds | None:
        """Fewest and most replicas; None: a fixed number. Raises UsageError for a fixed number as well as a bound."""
        from qserve.cluster.settings import Bounds

        fewest, most = self.min_replicas, self.max_replicas
        if fewest is None and most is None:
            return None
        if most is None:
            raise UsageError(
                f"--min-replicas {fewest} needs --max-replicas; for a fixed number give --replicas {fewest}"
            )
        if self.replicas is not None:
            raise UsageError("--replicas is a fixed number and --max-replicas an upper bound; leave one out")
        return Bounds(fewest or 1, most, self.scale_down_after)


@contextlib.contextmanager
def joined_cluster(values: Mapping[str, Any]) -> Iterator[Cluster | None]:
    """The cluster of --ray, joined and surveyed; None without --ray. Raises UsageError if that fails."""
    flags = _ClusterFlags(**{one.name: values[one.name] for one in fields(_ClusterFlags)})
    if flags.ray is None:
        yield None
        return
    from qserve.cluster.join import joined
    from qserve.cluster.nodes import common_hardware, of_one_kind
    from qserve.cluster.settings import PortRange, RaySettings
    from qserve.cluster.survey import surveyed

    settings, bounds = RaySettings(flags.ray, PortRange.parse(flags.ray_ports)), flags.bounds
    with joined(flags.ray), surveyed(settings.ports, flags.ray_nodes) as survey:
        nodes = survey.nodes
        if flags.gpu == "none":
            nodes = [replace(node, num_gpus=0.0, hardware=replace(node.hardware, devices=())) for node in nodes]
        nodes = of_one_kind(nodes)
        yield Cluster(settings, survey, nodes, common_hardware(nodes), flags.replicas, bounds)


def _refuse_served_judges(deployments: Sequence[ModelDeployment]) -> None:
    from qserve.reward.recipe import read_recipe
    from qserve.reward.recipe.config import SERVED

    for one in deployments:
        recipe = one.reward.recipe if one.role == "reward" else None
        if recipe is not None and read_recipe(Path(recipe)).asks_served:
            raise UsageError(
                f"--ray and a judge with url: {SERVED}: it asks a worker of the same machine; give the "
                "judge the URL of a service"
            )


def _words(nodes: Sequence[Node]) -> str:
    each = nodes[0].hardware
    cards = f"{len(each.devices)} × {each.devices[0].name}" if each.devices else "no cards"
    return f"cluster: {len(nodes)} nodes with {cards} ({', '.join(node.address for node in nodes)})"
