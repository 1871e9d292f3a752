"""Messages between the service and the agent on a node. Plain data: both sides have the same qserve."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from qserve.cluster.checkpoints import CheckpointKey
from qserve.cluster.settings import PortRange
from qserve.planner.plan import Plan
from qserve.supervisor.deployment import ModelDeployment
from qserve.worker.base import WorkerFacts, WorkerLoad, WorkerState

__all__ = ["AgentStatus", "Assignment", "Failure", "GatewayStatus"]


@dataclass(frozen=True)
class Assignment:
    """The worker that an agent is to run.

    Attributes:
        deployment: what it serves; its folder is where the service found it.
        checkpoint: the name by which a node finds the checkpoint itself; "": only at `deployment.folder`.
        checkpoint_key: what it must be there; None: of a folder that holds no such files.
        key: what the gateway will present.
        host: the node's address, which it listens on alone.
        start_limit_s: as `SupervisedWorker.start_limit_s`.
        lease_s: without word from the service for so long, all of it ends.
    """

    deployment: ModelDeployment
    checkpoint: str
    checkpoint_key: CheckpointKey | None
    key: str = field(repr=False)
    host: str
    ports: PortRange
    start_limit_s: float | None
    lease_s: float


@dataclass(frozen=True)
class GatewayStatus:
    """What the gateway has for this worker, and how long the agent may wait for a change before it answers."""

    load: WorkerLoad
    wait_s: float


@dataclass(frozen=True)
class Failure:
    """Why a worker will not come back on its node: the kind of error, by name, and its sentence."""

    kind: str
    message: str


@dataclass(frozen=True)
class AgentStatus:
    """The state of a worker on a node.

    Attributes:
        facts: as the node knows them.
        outside_deaths: as `WorkerStatus.outside_deaths`, counted on the node.
        start_phases_s: of its last start there.
        events: since the last status, in order.
        log: bytes of its log since the last status.
    """

    state: WorkerState
    detail: str
    facts: WorkerFacts
    num_restarts: int
    outside_deaths: frozenset[int]
    start_phases_s: Mapping[str, float]
    events: tuple[tuple[str, Mapping[str, Any]], ...]
    log: bytes
    notes: tuple[str, ...]
    plan: Plan
    failure: Failure | None = None
