"""A service that begins with the port and the workers of another one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from socket import socket

from qserve.supervisor.child import Descriptors
from qserve.supervisor.deployment import ModelDeployment
from qserve.supervisor.private import PrivateFolder
from qserve.supervisor.record import RunRecord
from qserve.supervisor.screen import Screen
from qserve.supervisor.takeover.handed import HandedWorker
from qserve.supervisor.takeover.taking import Taking
from qserve.supervisor.this_machine import ThisMachine
from qserve.supervisor.worker import SupervisedWorker
from qserve.worker.base import WorkerFacts

__all__ = ["Adopting"]


class Adopting(ThisMachine):
    """The `Runner` of workers that run already. Until `leave` has returned they are the old service's."""

    def __init__(
        self,
        taking: Taking,
        workers: Sequence[HandedWorker],
        ends: Sequence[Descriptors],
        listener: socket,
        folder: PrivateFolder,
    ) -> None:
        """Use `begun`."""
        self._taking = taking
        self._workers = list(zip(workers, ends, strict=True))
        self._made: list[SupervisedWorker] = []
        self._folder = folder
        self.listener = listener
        self.deployments = [one.deployment for one in workers]

    @classmethod
    async def begun(cls, taking: Taking) -> Adopting:
        """Takes port and workers. Raises WorkerFailed where the old service does not hand them over."""
        handed, listener, folder, ends = await asyncio.to_thread(taking.take)
        return cls(taking, handed.workers, ends, listener, folder)

    @property
    def has_left(self) -> bool:
        """The old service watches the workers no more: they are this one's."""
        return self._taking.has_left

    @contextlib.contextmanager
    def folder(self) -> Iterator[PrivateFolder]:
        """The folder with the workers' sockets, which goes with this service once the old one has left."""
        with self._folder.kept():
            yield self._folder

    def worker(
        self,
        deployment: ModelDeployment,
        private: Path,
        record: RunRecord,
        screen: Screen,
        chat: WorkerFacts | None = None,
        facts: WorkerFacts | None = None,
    ) -> SupervisedWorker:
        """See `Runner.worker`: one that is to be adopted."""
        handed = next(one for one, _ in self._workers if one.deployment.name == deployment.name)
        facts = replace(WorkerFacts.from_json(handed.facts), plan=deployment.plan.to_json())
        record.teaches_nothing(deployment.name)  # it may have held more than at its start for long
        worker = super().worker(deployment, private, record, screen, chat, facts)
        self._made.append(worker)
        return worker

    async def adopt(self) -> None:
        """Have the workers that were made take over those that run. Raises WorkerFailed."""
        for worker, (handed, ends) in zip(self._made, self._workers, strict=True):
            await worker.adopt(handed, ends)

    async def leave(self) -> None:
        """The old service accepts no more and finishes what it has. Raises WorkerFailed where it is gone.

        Cancelled, it still knows whether the workers are this one's.
        """
        leaving = asyncio.create_task(asyncio.to_thread(self._taking.leave))
        try:
            await asyncio.shield(leaving)
        except asyncio.CancelledError:
            with contextlib.suppress(Exception):
                await leaving
            raise
        finally:
            self._folder.is_given = not self.has_left

    async def gone(self) -> None:
        """Returns when the old service has ended."""
        await self._taking.gone()

    def tell(self, record: RunRecord, screen: Screen) -> None:
        """Record and show from whom it has taken over."""
        record.event("", "took_over", run=self._taking.about.run, pid=self._taking.pid)
        screen.note(
            f"took over from run {self._taking.about.run} (process {self._taking.pid}), which finishes its requests"
        )
