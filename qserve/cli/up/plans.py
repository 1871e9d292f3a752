"""From the flags of `qserve up` to the models of its workers, on this machine or on the nodes of a cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click

from qserve.cli.options.deployment import deployment_of
from qserve.cli.up.checks import check_reads
from qserve.cli.up.cluster import Cluster
from qserve.cli.up.hosting import hosted_models
from qserve.errors import UsageError
from qserve.service.knowledge import Knowledge
from qserve.service.machine import Machine
from qserve.service.plan import plan_service
from qserve.service.request import ServiceRequest
from qserve.service.residents import ResidentsPlan, ResidentsRequest, plan_residents
from qserve.supervisor import ModelDeployment
from qserve.supervisor.deployment import OnDemand
from qserve.supervisor.screen import Screen

__all__ = ["planned_hosts", "planned_nodes", "planned_residents"]


def planned_hosts(
    request: ServiceRequest, machine: Machine, knowledge: Knowledge, configs: Path, screen: Screen
) -> list[ModelDeployment]:
    """What this machine hosts. `configs` takes the files that a service needs beside its checkpoints.

    Raises UsageError, ModelNotFound, BrokenCheckpoint or DoesNotFit, each with what would work.
    """
    deployments = hosted_models(plan_service(request, machine, knowledge, configs), configs, screen)
    return _checked(deployments, screen)


def planned_residents(
    request: ResidentsRequest, machine: Machine, knowledge: Knowledge, configs: Path, screen: Screen
) -> tuple[list[ModelDeployment], ResidentsPlan]:
    """The models of a file's `models:`, each on this machine by itself, and the plan by which they take turns.

    Raises as `planned_hosts` does, and UsageError for two models of one name.
    """
    planned = plan_residents(request, machine, knowledge, configs)
    planned.check_fits()
    cards = machine.hardware.devices
    deployments: list[ModelDeployment] = []
    for one in planned.models:
        (hosted,) = hosted_models(one.service, configs / one.group, screen)
        check_reads(hosted, screen)
        deployments.append(
            replace(
                hosted,
                group=one.group,
                cards=tuple(cards[place] for place in one.places),
                on_demand=OnDemand(one.footprint, one.keeping),
            )
        )
    _refuse_same_names(deployments)
    return deployments, planned


def _refuse_same_names(deployments: Sequence[ModelDeployment]) -> None:
    counted = Counter(name for one in deployments for name in one.names)
    twice = next((name for name, count in counted.items() if count > 1), None)
    if twice is not None:
        raise UsageError(
            f"two models of the service are called {twice!r} in requests; give one of them another served_model_name "
            "(of a reward model served_reward_name)"
        )


def planned_nodes(request: ServiceRequest, cluster: Cluster, configs: Path, screen: Screen) -> list[ModelDeployment]:
    """What one node of the cluster hosts, which counts as the one that the service runs on. Raises as `planned_hosts`
    does.
    """
    service, num_nodes = cluster.planned(request, configs)
    first, *rest = hosted_models(service, configs, screen)
    return _checked([replace(first, num_nodes=num_nodes), *rest], screen)


def _checked(deployments: list[ModelDeployment], screen: Screen) -> list[ModelDeployment]:
    """Refuse flags that the engine does not read; print where the plans differ from what --config expects."""
    check_reads(deployments[0], screen)
    deployment = deployment_of(click.get_current_context())
    plans = {one.role: one.plan for one in deployments}
    if deployment is not None and "chat" in plans:
        for difference in deployment.expect.differences(plans["chat"], plans.get("reward")):
            screen.note(f"· {deployment.path.name}: {difference}")
    return deployments
