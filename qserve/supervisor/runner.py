"""`Runner`: starts workers, on this machine or elsewhere.

This machine's is `this_machine.py: ThisMachine`. One that someone else runs keeps its `endpoint` true all the same:
state, detail, limits, and the address, which may be another one after a restart.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from qserve.engine.base import WorkerEndpoint
from qserve.planner.plan import Plan
from qserve.supervisor.hosted import Hosted
from qserve.supervisor.record import RunRecord
from qserve.supervisor.sanity import Sanity
from qserve.supervisor.screen import Screen

__all__ = ["Runner", "Worker"]


class Worker(Protocol):
    """One worker of the service, wherever it runs.

    Attributes:
        endpoint: how to reach it and how it is; the gateway reads it while it changes.
        phases_s: what its last start was spent on.
        vocab_size: of a model that must predict text; None where that is no question.
        start_limit_s: how long its start may show no progress; None: by phase.
        devices: what it computes on, for who starts beside whom (`replicas.py`).
    """

    endpoint: WorkerEndpoint
    phases_s: dict[str, float]
    vocab_size: int | None
    start_limit_s: float | None
    devices: frozenset[str]

    @property
    def plan(self) -> Plan | None:
        """What is put into effect; None for a worker that has no model."""

    @property
    def notes(self) -> list[str]:
        """What it said that its user should know, though nothing failed."""

    @property
    def measures_free_memory(self) -> bool:
        """While it starts; then nothing else may start on the same card."""

    async def start(self) -> None:
        """Returns when it is ready. Raises QserveError with its own reason if it never will be."""

    async def watch(self) -> None:
        """Stay with it and bring it back whenever it goes. Raises WorkerFailed when that does not help."""

    async def restart(self) -> None:
        """Let its requests come to their ends, without new ones, and start it again. Somebody must `watch` it."""

    async def stop(self) -> None:
        """End it."""

    async def memory(self) -> dict[str, Any]:
        """What it holds, as it or its engine measured it."""

    async def work(self) -> dict[str, Any]:
        """What it tells of its own work; empty where it tells nothing, or not now."""

    async def sanity(self) -> Sanity | None:
        """Whether its model predicts text; None where that is no question. It must be ready."""


class Runner(Protocol):
    """Who runs the workers of a service."""

    def worker(
        self, hosted: Hosted, private: Path, record: RunRecord, screen: Screen, chat: WorkerEndpoint | None
    ) -> Worker:
        """A worker for `hosted`, not started yet. `chat` is the chat model beside it, which a judge may ask."""

    async def scale(self, workers: Sequence[Worker]) -> None:
        """Beside the running service, until it is cancelled: start and end replicas as the load wants them."""
