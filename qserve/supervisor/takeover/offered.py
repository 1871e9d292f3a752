"""A running service as the next one sees it: what it is, what it hands over, and how it stops to watch its workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from socket import socket

from qserve.supervisor.deployment import ModelDeployment
from qserve.supervisor.memory.watch import MemoryWatch
from qserve.supervisor.private import PrivateFolder
from qserve.supervisor.takeover.handed import About, Handed
from qserve.supervisor.takeover.launched import Launched, files_of
from qserve.supervisor.worker import SupervisedWorker
from qserve.worker.base import WorkerState

__all__ = ["Offered"]


@dataclass
class Offered:
    """A service whose workers are processes of this machine.

    Attributes:
        deployments, workers: in the same order.
        folder: with the workers' sockets.
        busy: why it can't be taken over from now, beside its workers' states; "": it can.

    """

    deployments: Sequence[ModelDeployment]
    workers: Sequence[SupervisedWorker]
    listener: socket
    folder: PrivateFolder
    watch: MemoryWatch | None
    run: str
    launched: Launched
    busy: Callable[[], str]

    def __post_init__(self) -> None:
        self._address = self.listener.getsockname()
        self._files = {one.folder.resolve(): files_of(one.folder) for one in self.deployments if one.folder.is_dir()}

    def about(self) -> About:
        """See `Offerable`, as the others."""
        return About(self._address, self.run, self.launched, self._files, self._why_not())

    def _why_not(self) -> str:
        if any(one.load_format == "dummy" for one in self.deployments):
            return "its weights are random (--load-format dummy), and the file that describes them goes with it"
        for worker in self.workers:
            if worker.status.state is not WorkerState.READY:
                return f"its {worker.status.name} worker is {worker.status.state}; try again when it is ready"
        return self.busy()

    def hand(self) -> tuple[Handed, list[int], list[int]]:
        pairs = [worker.hand(one) for worker, one in zip(self.workers, self.deployments, strict=True)]
        ends = [end for _, ends in pairs for end in (ends.process, ends.lifeline, ends.output)]
        handed = Handed(self.folder.path, tuple(one for one, _ in pairs))
        return handed, [self.listener.fileno(), self.folder.lock, *ends], [ends.process for _, ends in pairs]

    async def pause(self) -> None:
        if self.watch is not None:
            await self.watch.stop()
        for worker in self.workers:
            worker.pause()

    def resume(self) -> None:
        for worker in self.workers:
            worker.resume()
        if self.watch is not None:
            self.watch.begin()

    def given(self) -> None:
        """See `Offerable`."""
        self.folder.is_given = True
