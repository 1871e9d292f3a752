"""Ends a request early: the client disconnects or stops reading, or the worker is taken out of service."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from starlette.types import Receive

from qserve.gateway.limits import ClientGone, ConnectedReceive

__all__ = ["CancelScope", "Down", "WorkerGivenUp"]


class WorkerGivenUp(Exception):
    """The supervisor took the worker out of service while the request ran."""


class Down:
    """Whether a worker's process was given up, told to the requests that run there."""

    __slots__ = ("_watching", "is_set")

    def __init__(self) -> None:
        self.is_set = False
        self._watching: set[CancelScope] = set()

    def set(self) -> None:
        """Ends the requests that watch it, soon."""
        self.is_set = True
        watching, self._watching = self._watching, set()
        for end in watching:
            self.add(end)

    def add(self, end: CancelScope) -> None:
        """Ends this request when it is set."""
        if self.is_set:
            asyncio.get_running_loop().call_soon(end.on_down)
        else:
            self._watching.add(end)

    def discard(self, end: CancelScope) -> None:
        """Leaves this request alone; what is scheduled already still comes."""
        self._watching.discard(end)


class CancelScope:
    """`async with CancelScope(…)` cancels the block when continuing is pointless, and raises the reason.

    Raises ClientGone or WorkerGivenUp in place of the CancelledError; a cancellation from elsewhere passes through.
    `worker_down` None: nobody answers yet; `watch` names who does.
    `sending_since_s` is to be set around each send: a send that takes longer than `stall_timeout_s` means a client
    that stopped reading, and its slot at the worker goes to others.
    """

    def __init__(self, receive: Receive, worker_down: Down | None, stall_timeout_s: float) -> None:
        self._receive = receive
        self._worker_down = worker_down
        self._stall_timeout_s = stall_timeout_s
        self._cause: Exception | None = None
        self._is_over = False
        self._stall_timer: asyncio.TimerHandle | None = None
        self._sending_since_s = 0.0

    async def __aenter__(self) -> Self:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._disconnect = _DisconnectWatch(self._receive, self._on_gone)
        if self._worker_down is not None:
            self._worker_down.add(self)
        return self

    @property
    def sending_since_s(self) -> float:
        """When the send began that is going on, 0 for none."""
        return self._sending_since_s

    @sending_since_s.setter
    def sending_since_s(self, since_s: float) -> None:
        self._sending_since_s = since_s
        if self._stall_timer is None:
            self._arm()

    def watch(self, worker_down: Down) -> None:
        """End the request if this worker goes down."""
        self._worker_down = worker_down
        worker_down.add(self)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over = True  # a scheduled callback can't be removed
        self._disconnect.stop()
        if self._worker_down is not None:
            self._worker_down.discard(self)
        if self._stall_timer is not None:
            self._stall_timer.cancel()
        if self._cause is not None and self._task.uncancel() == 0 and kind is asyncio.CancelledError:
            raise self._cause from None

    def on_down(self) -> None:
        """The worker went down."""
        self._end(WorkerGivenUp())

    def _arm(self) -> None:
        self._stall_timer = asyncio.get_running_loop().call_later(self._stall_timeout_s / 2, self._on_stall_timer)

    def _on_gone(self) -> None:
        self._end(ClientGone())

    def _on_stall_timer(self) -> None:
        if self._sending_since_s and time.perf_counter() - self._sending_since_s > self._stall_timeout_s:
            self._end(ClientGone())
        else:
            self._arm()

    def _end(self, cause: Exception) -> None:
        if self._cause is None and not self._is_over:
            self._cause = cause
            self._task.cancel()


class _DisconnectWatch:
    """Watches for the client closing its connection after its body was read. `stop` ends the watch.

    A connection of our own server calls back; of any other, a task waits for its message.
    """

    def __init__(self, receive: Receive, callback: Callable[[], None]) -> None:
        self._callback = callback
        self._connection = receive.connection if isinstance(receive, ConnectedReceive) else None
        self._task: asyncio.Task[None] | None = None
        if self._connection is None:
            self._task = asyncio.create_task(self._until_disconnected(receive))
        elif not self._connection.when_lost(callback):
            asyncio.get_running_loop().call_soon(self._lost_before)

    def stop(self) -> None:
        if self._connection is not None:
            self._connection.when_lost(None)
        if self._task is not None:
            self._task.cancel()
        self._callback = _nothing

    def _lost_before(self) -> None:
        self._callback()

    async def _until_disconnected(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._callback()


def _nothing() -> None:
    """Whoever waited has gone."""
