"""A worker whose model comes into memory and leaves it: a process that is started and ended by a schedule."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

from qserve.detect.free_memory import read_free_memory
from qserve.errors import QserveError
from qserve.supervisor.child import Child
from qserve.supervisor.liveness.restarts import FIRST_PAUSE_S, WorkerEvents
from qserve.supervisor.memory.held import held_bytes
from qserve.supervisor.residency.standby import Standby
from qserve.supervisor.worker import SupervisedWorker
from qserve.worker.base import WorkerState, WorkerStatus
from qserve.worker.launch import Launch
from qserve.worker.process_tree import tree_of

__all__ = ["OnDemandWorker", "held_by"]

_LOOK_S = 0.02
_NOT_LOADED = "it is not in memory; the next request for it has it loaded"


class OnDemandWorker(SupervisedWorker):
    """`load` and `unload` are called by one schedule, one after the other; `watch` runs meanwhile.

    Attributes:
        is_loaded: its process runs, or is being restarted; it counts with its bytes.
        peak_bytes: the most that it held during its last start.
        held_bytes: of the RAM, when it left last.
        reclaimed_bytes: by how much the RAM had more free behind that; other programs are in it.
        standby: one for all models: becomes the next worker; None: each starts from nothing.
        starting: one for all models: held while one starts, since the plan has room for one start at a time.
    """

    def __init__(self, status: WorkerStatus, launch: Launch, log_file: Path, report: WorkerEvents) -> None:
        super().__init__(status, launch, log_file, report)
        self.is_loaded = False
        self.peak_bytes = self.held_bytes = self.reclaimed_bytes = 0
        self.starting = asyncio.Lock()
        self.standby: Standby | None = None
        self._was_loaded = asyncio.Event()
        self._leaves = asyncio.Event()
        self._has_left = asyncio.Event()
        self._why_leaves = ""
        self._restarts.enter(WorkerState.IDLE, _NOT_LOADED)

    async def start(self) -> None:
        """See `Worker.start`; no other model starts meanwhile."""
        async with self.starting:
            await super().start()

    async def load(self) -> None:
        """Start it; returns when it is ready. Raises QserveError with its reason if that fails, then it is FAILED."""
        self.status.num_restarts += bool(self.status.start_phases_s)
        self._restarts.enter(WorkerState.STARTING, "it is being loaded")
        self._leaves.clear()
        self._has_left.clear()
        self.is_loaded = True
        try:
            await self.start()
        except QserveError as error:
            self.is_loaded = False
            self._restarts.enter(WorkerState.FAILED, f"it could not be loaded: {error}")
            raise
        self._was_loaded.set()

    async def unload(self, why: str) -> None:
        """Let its requests finish, new ones wait, and end it. Returns when its memory is free."""
        self._why_leaves = why
        self._leaves.set()
        await self._has_left.wait()

    def refuse(self, why: str) -> None:
        """It can't be loaded now: its requests are told so."""
        self._restarts.enter(WorkerState.FAILED, why)

    def may_load_again(self) -> None:
        """After a failed `load`: the next request tries anew."""
        self._restarts.enter(WorkerState.IDLE, _NOT_LOADED)

    async def watch(self) -> None:
        """See `Worker.watch`; a model that does not come back is not loaded any more, and the others go on."""
        while True:
            await self._was_loaded.wait()
            pause_s = FIRST_PAUSE_S
            while True:
                reason = await self._until_down()  # at once where it is to leave already
                if self._leaves.is_set():
                    break
                is_requested = self._restarts.is_requested
                self._restarts.clear_request()
                if not await self._came_back(reason, 0.0 if is_requested else pause_s):
                    break
            self._was_loaded.clear()
            self.is_loaded = False
            if self._leaves.is_set():
                self._restarts.enter(WorkerState.IDLE, _NOT_LOADED)
                self._has_left.set()

    async def memory(self) -> dict[str, Any]:
        """See `Worker.memory`; empty while it does not run."""
        return {} if self.running_pid is None else await super().memory()

    async def stop(self) -> None:
        """See `Worker.stop`."""
        await super().stop()
        self.is_loaded = False

    async def _new_child(self) -> Child:
        stood_by = None if self.standby is None else self.standby.take(self.launch, self._log.file, self._hear)
        return stood_by or await super()._new_child()

    async def _came_back(self, reason: str, pause_s: float) -> bool:
        """Restarted after it ended; False: it is to leave, or failed for good."""
        again = asyncio.create_task(self._restarts.start_again(self._start_again, reason, pause_s))
        leaves = asyncio.create_task(self._leaves.wait())
        try:
            await asyncio.wait([again, leaves], return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaves.cancel()
            was_over = again.done()
            again.cancel()
            outcome = (await asyncio.gather(again, leaves, return_exceptions=True))[0]
        if not was_over and self.running_pid is not None:
            await self._end_now()
        if isinstance(outcome, Exception) and not isinstance(outcome, QserveError):
            raise outcome
        return was_over and not isinstance(outcome, BaseException)

    async def _end_now(self) -> None:
        before, self.held_bytes = free_bytes(), held_by(self.running_pid)
        await super()._end_now()
        self.reclaimed_bytes = free_bytes() - before

    async def _until_drained(self) -> str:
        """A requested restart, or it is to leave; either way its requests finish, and new ones wait."""
        tasks = [asyncio.create_task(self._restarts.requested()), asyncio.create_task(self._leaves.wait())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        why = self._why_leaves if self._leaves.is_set() else "a restart was requested"
        self._restarts.enter(WorkerState.UNLOADING, f"{why}; running requests finish first")
        while self.status.load.num_requests:
            await asyncio.sleep(_LOOK_S)
        return why


def held_by(pid: int | None) -> int:
    """What its processes hold of the RAM; 0 once it is gone."""
    return 0 if pid is None else held_bytes(tree_of(pid), shares_gpu=False)


def free_bytes() -> int:
    """Of the RAM, or of the cgroup that bounds this service."""
    return read_free_memory().pools[-1].available_bytes
