"""`Runner`: starts workers, on this machine or elsewhere.

This machine's is `this_machine.py: ThisMachine`. A worker elsewhere keeps its `status` up to date as well: state,
detail, and facts, of which the address may change with a restart.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from qserve.planner.plan import Plan
from qserve.supervisor.deployment import ModelDeployment
from qserve.supervisor.record import RunRecord
from qserve.supervisor.sanity.check import Sanity
from qserve.supervisor.screen import Screen
from qserve.worker.base import WorkerFacts, WorkerStatus

__all__ = ["Runner", "Worker"]


class Worker(Protocol):
    """One worker of the service, on any machine.

    Attributes:
        status: its facts and state; the gateway reads it while it changes.
        phases_s: seconds of its last start by phase.
        vocab_size: of a model whose loss is checked; None of others.
        start_limit_s: how long its start may show no progress; None: by phase.
        devices: what it computes on, for who starts beside whom (`replicas.py`).
    """

    status: WorkerStatus
    phases_s: dict[str, float]
    vocab_size: int | None
    start_limit_s: float | None
    devices: frozenset[str]

    @property
    def plan(self) -> Plan | None:
        """The plan; None for a worker without a model."""

    @property
    def notes(self) -> list[str]:
        """Notes of the worker for the user."""

    @property
    def measures_free_memory(self) -> bool:
        """While it starts; then nothing else may start on the same card."""

    async def start(self) -> None:
        """Start it; returns when it is ready. Raises QserveError with its reason if that fails."""

    async def watch(self) -> None:
        """Restart it whenever it fails. Raises WorkerFailed if restarts do not help."""

    async def restart(self) -> None:
        """Drain it and start it again. `watch` must be running."""

    async def stop(self) -> None:
        """End it."""

    async def memory(self) -> dict[str, Any]:
        """Its measured memory."""

    async def work(self) -> dict[str, Any]:
        """Its report on its own work; empty if it has none, or does not answer."""

    async def sanity(self) -> Sanity | None:
        """Whether its model predicts text; None if that is not checked. The worker must be ready."""


class Runner(Protocol):
    """Starts the workers of a service."""

    def worker(
        self, deployment: ModelDeployment, private: Path, record: RunRecord, screen: Screen, chat: WorkerFacts | None
    ) -> Worker:
        """A worker for `deployment`, not started yet. `chat`: the chat model of the service, for judges."""

    async def scale(self, workers: Sequence[Worker]) -> None:
        """Start and stop replicas with the load, until cancelled."""
