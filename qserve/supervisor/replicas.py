"""All workers of a service: start order, tolerated failures, rolling restart."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any

from qserve.errors import QserveError, WorkerFailed
from qserve.supervisor.runner import Worker
from qserve.supervisor.worker import ANY, CPU
from qserve.worker.base import WorkerState

__all__ = ["RollingRestart", "start_all", "watch_all"]

_log = logging.getLogger("qserve.supervisor")


async def start_all(workers: Sequence[Worker]) -> None:
    """Start all workers: in parallel, but one after the other if they share a card or measure free memory.

    Raises the error of the first that could not start.
    """
    with _first_error():
        async with asyncio.TaskGroup() as group:
            for together in _sharing(workers):
                group.create_task(_start(together))


async def watch_all(workers: Sequence[Worker], *beside: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Until all replicas of one model have failed for good; raises what the last of them said, or one `beside` them."""
    with _first_error():
        async with asyncio.TaskGroup() as group:
            for work in beside:
                group.create_task(work())
            for worker in workers:
                replicas = [one for one in workers if one.status.group == worker.status.group]
                group.create_task(_watch(worker, replicas))
    raise WorkerFailed("the workers are gone")


class RollingRestart:
    """Restarts workers one after the other, each when its requests are over; the other replicas serve meanwhile."""

    def __init__(self, workers: Sequence[Worker], after: Callable[[], Coroutine[Any, Any, None]] | None = None) -> None:
        """`after` is awaited before the first one: another service may still have requests at them."""
        self._workers = workers
        self._after = after
        self._running: asyncio.Task[None] | None = None

    @property
    def is_running(self) -> bool:
        """Whether one is running."""
        return self._running is not None and not self._running.done()

    def begin(self) -> tuple[str, ...] | None:
        """Start a rolling restart; returns the names of the ready workers in order, None while one is running."""
        if self.is_running:
            _log.warning("a rolling restart is already running; this one was not started")
            return None
        ready = [one for one in self._workers if one.status.state is WorkerState.READY]
        self._running = asyncio.create_task(self._roll(ready))
        return tuple(worker.status.name for worker in ready)

    async def stop(self) -> None:
        """Cancel it: the service is stopping."""
        if self._running is not None:
            self._running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._running

    async def _roll(self, workers: Sequence[Worker]) -> None:
        if self._after is not None:
            await self._after()
        for worker in workers:
            try:
                await worker.restart()
            except QserveError as error:
                _log.warning("the rolling restart stopped at %s: %s", worker.status.name, error)
                return
        names = ", ".join(one.status.name for one in workers)
        _log.warning("rolling restart: %s", f"{names} ready again" if names else "no worker is ready to be restarted")


async def _start(workers: Sequence[Worker]) -> None:
    """Workers that share devices."""
    is_measured = any(worker.measures_free_memory for worker in workers)
    groups = [worker.status.group for worker in workers]
    are_replicas = len(set(groups)) < len(groups)
    if is_measured or (are_replicas and CPU not in workers[0].devices):
        for worker in workers:
            await worker.start()
        return
    async with asyncio.TaskGroup() as group:
        for worker in workers:
            group.create_task(worker.start())


def _sharing(workers: Sequence[Worker]) -> list[list[Worker]]:
    """Groups of workers none of which shares a device with one of another group."""
    groups: list[list[Worker]] = []
    for worker in workers:
        joined = [group for group in groups if any(_meet(worker, other) for other in group)]
        groups = [group for group in groups if group not in joined]
        groups.append([*(one for group in joined for one in group), worker])
    return groups


def _meet(one: Worker, other: Worker) -> bool:
    both = (one.devices, other.devices)
    if any(CPU in devices for devices in both):
        return all(CPU in devices for devices in both)
    return any(ANY in devices for devices in both) or bool(one.devices & other.devices)


async def _watch(worker: Worker, replicas: Sequence[Worker]) -> None:
    try:
        await worker.watch()
    except QserveError as error:
        if all(one.status.state is WorkerState.FAILED for one in replicas):
            raise
        _log.error("%s is out of service, the other replicas continue: %s", worker.status.name, error)


@contextlib.contextmanager
def _first_error() -> Iterator[None]:
    """Raise the first error of a group: the one that a user can act on."""
    try:
        yield
    except BaseExceptionGroup as errors:
        ours, others = errors.split(QserveError)
        if ours is None or others is not None:
            raise
        # Not by `except*`: before Python 3.12, what is raised there comes out as a group again.
        first: BaseException = ours
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        raise first from None
