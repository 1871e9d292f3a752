"""How a worker comes back, wherever its process is: after growing pauses, or drained first where somebody asked."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from qserve.engine.base import WorkerEndpoint, WorkerState
from qserve.errors import QserveError, WorkerFailed

__all__ = ["FIRST_PAUSE_S", "Restarts", "WorkerEvents"]

_log = logging.getLogger("qserve.supervisor")
FIRST_PAUSE_S = 0.25
_LONGEST_PAUSE_S = 30.0
_MAX_FAILED_STARTS = 10
_LOOK_S = 0.05

WorkerEvents = Callable[[str, str, dict[str, Any]], None]
"""`tell(worker, event, details)`: `phase`, `ready`, `down`, `restart`, `retry`; for the screen and the run's record."""


class Restarts:
    """Those of one worker: writes its state to `endpoint`, and tells what happens."""

    def __init__(self, endpoint: WorkerEndpoint, tell: WorkerEvents) -> None:
        self._endpoint = endpoint
        self._tell = tell
        self._wish = asyncio.Event()

    def enter(self, state: WorkerState, detail: str) -> None:
        """It is in `state` now; `detail` is for people."""
        self._endpoint.detail = detail
        self._endpoint.state = state

    def event(self, event: str, **details: Any) -> None:
        """Something happened to it."""
        self._tell(self._endpoint.name, event, details)

    async def wished(self) -> None:
        """Returns when somebody wants it restarted."""
        await self._wish.wait()

    @property
    def is_wished(self) -> bool:
        """Somebody wants it restarted, and it was not yet."""
        return self._wish.is_set()

    def forget_wish(self) -> None:
        """It is restarted now."""
        self._wish.clear()

    async def ask_for_one(self) -> None:
        """Returns when it is ready again, or idle. Raises WorkerFailed if it does not come back.

        Somebody must watch it meanwhile.
        """
        endpoint, before = self._endpoint, self._endpoint.num_restarts
        self._wish.set()
        while endpoint.num_restarts == before or endpoint.state is not WorkerState.READY:
            if endpoint.state is WorkerState.FAILED:
                raise WorkerFailed(f"the {endpoint.name} worker did not come back: {endpoint.detail}")
            if endpoint.state is WorkerState.IDLE:
                return
            await asyncio.sleep(_LOOK_S)

    async def drain(self, detail: str) -> None:
        """Takes no new requests from here on; returns when those that run are over."""
        self.enter(WorkerState.DRAINING, detail)
        while self._endpoint.num_requests:
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
                _log.warning("%s worker: ready again", self._endpoint.name)
                return pause_s
        self.enter(WorkerState.FAILED, reason)
        raise WorkerFailed(f"the {self._endpoint.name} worker failed to start {_MAX_FAILED_STARTS} times: {reason}")

    def _announce(self, reason: str, pause_s: float) -> None:
        self._endpoint.num_restarts += 1
        self.enter(WorkerState.RESTARTING, f"{reason}; it is being restarted")
        self.event("restart", reason=reason, pause_s=pause_s)
        _log.warning("%s worker: %s; restarting in %.2f s", self._endpoint.name, reason, pause_s)
