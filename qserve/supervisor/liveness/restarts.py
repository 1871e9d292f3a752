"""Restarts of a worker: with growing pauses after failures, drained first if requested."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from qserve.errors import QserveError, WorkerFailed
from qserve.worker.base import WorkerState, WorkerStatus

__all__ = ["FIRST_PAUSE_S", "Restarts", "WorkerEvents"]

_log = logging.getLogger("qserve.supervisor")
FIRST_PAUSE_S = 0.25
_LONGEST_PAUSE_S = 30.0
_MAX_FAILED_STARTS = 10
_LOOK_S = 0.05

WorkerEvents = Callable[[str, str, dict[str, Any]], None]
"""`report(worker, event, details)`: `phase`, `ready`, `stuck`, `down`, `restart`, `retry`, and `failed`, after which
the worker is not started again; for the screen and the record.
"""


class Restarts:
    """The restarts of one worker: writes its state and reports events."""

    def __init__(self, status: WorkerStatus, report: WorkerEvents) -> None:
        self._status = status
        self._report = report
        self._requested = asyncio.Event()

    def enter(self, state: WorkerState, detail: str) -> None:
        """Enter `state`; `detail` is shown to users."""
        self._status.detail = detail
        self._status.state = state

    def event(self, event: str, **details: Any) -> None:
        """Report an event."""
        self._report(self._status.name, event, details)

    async def requested(self) -> None:
        """Waits for a requested restart."""
        await self._requested.wait()

    @property
    def is_requested(self) -> bool:
        """Whether a restart was requested and has not begun."""
        return self._requested.is_set()

    def clear_request(self) -> None:
        """The restart begins."""
        self._requested.clear()

    async def request(self) -> None:
        """Request a restart; returns when the worker is ready again, or idle. Raises WorkerFailed if it fails.

        `watch` must be running meanwhile.
        """
        status, before = self._status, self._status.num_restarts
        self._requested.set()
        while status.num_restarts == before or status.state is not WorkerState.READY:
            if status.state is WorkerState.FAILED:
                raise WorkerFailed(f"the {status.name} worker did not come back: {status.detail}")
            if status.state is WorkerState.IDLE:
                return
            await asyncio.sleep(_LOOK_S)

    async def drain(self, detail: str) -> None:
        """Take no new requests; returns when the running ones have finished."""
        self.enter(WorkerState.DRAINING, detail)
        while self._status.load.num_requests:
            await asyncio.sleep(_LOOK_S)

    async def start_again(self, start: Callable[[], Awaitable[None]], reason: str, pause_s: float) -> float:
        """Calls `start` until it succeeds; returns the pause before the next restart.

        Raises WorkerFailed when it has failed with a QserveError too often.
        """
        for _ in range(_MAX_FAILED_STARTS):
            self._announce(reason, pause_s)
            await asyncio.sleep(pause_s)
            pause_s = min(max(2 * pause_s, FIRST_PAUSE_S), _LONGEST_PAUSE_S)
            try:
                await start()
            except QserveError as error:
                reason = str(error)
            else:
                _log.warning("%s worker: ready again", self._status.name)
                return pause_s
        self.enter(WorkerState.FAILED, reason)
        self.event("failed", reason=reason)
        raise WorkerFailed(f"the {self._status.name} worker failed to start {_MAX_FAILED_STARTS} times: {reason}")

    def _announce(self, reason: str, pause_s: float) -> None:
        self._status.num_restarts += 1
        self.enter(WorkerState.RESTARTING, f"{reason}; it is being restarted")
        self.event("restart", reason=reason, pause_s=pause_s)
        _log.warning("%s worker: %s; restarting in %.2f s", self._status.name, reason, pause_s)
