"""Watches the machine's free memory beside a service, and acts before the kernel ends a process or the machine freezes.

It watches workers whose models lie in this machine's RAM: on a GPU that shares it, on the CPU, or offloaded to it.
Those of other cards hold little of it, and ending one would help nobody.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from qserve.detect.free_memory import FreeMemory, read_free_memory
from qserve.errors import QserveError
from qserve.gateway.telemetry.machine_memory import MachineMemory
from qserve.supervisor.memory.held import held_bytes, planned_bytes
from qserve.supervisor.memory.levels import END_AGAIN_S, Held, MemoryLevel, MemoryLevels, whom_to_end
from qserve.supervisor.record import RunRecord
from qserve.supervisor.runner import Worker
from qserve.supervisor.worker import SupervisedWorker
from qserve.worker.base import WorkerState
from qserve.worker.process_tree import tree_of

__all__ = ["MemoryBounds", "MemoryWatch", "watch_of"]

_log = logging.getLogger("qserve.supervisor")


@dataclass(frozen=True)
class MemoryBounds:
    """What is known of the machine's memory before it is looked at.

    Attributes:
        shares_gpu: its GPU has its memory in the RAM.
        min_free_bytes: --min-free-ram; None: by the size of the memory, 0: nothing is watched.
    """

    shares_gpu: bool = False
    min_free_bytes: int | None = None


def watch_of(workers: Sequence[Worker], bounds: MemoryBounds, record: RunRecord) -> MemoryWatch | None:
    """The watch over those of `workers` whose models lie in this machine's RAM; None without any."""
    here = [one for one in workers if isinstance(one, SupervisedWorker)]
    in_ram = [one for one in here if one.plan is not None and planned_bytes(one.plan, shares_gpu=bounds.shares_gpu)]
    return None if bounds.min_free_bytes == 0 or not in_ram else MemoryWatch(in_ram, bounds, record)


class MemoryWatch:
    """`begin` it before the workers start, `stop` it before they are stopped."""

    def __init__(
        self,
        workers: Sequence[SupervisedWorker],
        bounds: MemoryBounds,
        record: RunRecord,
        read: Callable[[], FreeMemory] | None = None,
    ) -> None:
        """`read` gives one look at the memory; None: of this machine."""
        self.shown = MachineMemory()
        self._workers = workers
        self._record = record
        self._read = read or read_free_memory
        self._shares_gpu = bounds.shares_gpu
        self._levels = MemoryLevels(shares_gpu=bounds.shares_gpu, asked_bytes=bounds.min_free_bytes)
        self._acted = MemoryLevel.CLEAR
        self._ended_s = -END_AGAIN_S
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self) -> None:
        """Begin to watch; needs a running loop."""
        self._spawn(self._run())

    async def stop(self) -> None:
        """Watch no more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self) -> None:
        try:
            while True:
                now = self._read()
                self._act(now, self._levels.see(now, time.monotonic()))
                await asyncio.sleep(self._levels.pause_s(now))
        except OSError as error:  # not Linux
            _log.info("the machine's free memory is not watched: %s", error)
            self._release()
        except Exception:
            _log.exception("the machine's free memory is no longer watched")
            self._release()

    def _act(self, now: FreeMemory, level: MemoryLevel) -> None:
        self._show(now, level)
        why = self._levels.why(now)
        if level is MemoryLevel.CLEAR:
            if self._acted is not MemoryLevel.CLEAR:
                self._recover(why)
        elif self._acted is MemoryLevel.CLEAR:
            self._refuse(now, why)
        if level >= MemoryLevel.DRAIN > self._acted:
            self._drain(why)
        if level is MemoryLevel.END and time.monotonic() - self._ended_s >= END_AGAIN_S:
            self._end(why)
        self._acted = level if level is MemoryLevel.CLEAR else max(level, self._acted)

    def _show(self, now: FreeMemory, level: MemoryLevel) -> None:
        pool, shown = self._levels.scarcest(now), self.shown
        shown.total_bytes, shown.available_bytes = pool.total_bytes, pool.available_bytes
        shown.refuse_bytes = self._levels.reserve(pool, now).refuse_bytes
        shown.stalled_share, shown.level = now.stalled_share, int(level)

    def _refuse(self, now: FreeMemory, why: str) -> None:
        refusal = f"{why}; new requests are refused {self._levels.until(now)}"
        for worker in self._workers:
            worker.status.refusal = refusal
        self._tell("low", refusal)

    def _recover(self, why: str) -> None:
        self._release()
        self._tell("enough", f"{why}; new requests are taken again")

    def _release(self) -> None:
        """Nothing is held back."""
        for worker in self._workers:
            worker.status.refusal = ""
            worker.may_restart.set()

    def _drain(self, why: str) -> None:
        """Restart the worker that outgrew its plan, once its requests are over; one that did not would come back so."""
        held = {one.name: one for one in self._held() if one.has_outgrown}
        outgrown = [one for one in self._workers if one.status.name in held and one.status.state is WorkerState.READY]
        if not outgrown:
            return
        worker = max(outgrown, key=lambda one: held[one.status.name].grown_bytes)
        self._tell("drain", f"{why}; {held[worker.status.name]}: it is restarted once its requests are over")
        self._spawn(_restart(worker))

    def _end(self, why: str) -> None:
        held = [one for one in self._held() if one.held_bytes]
        if not held:
            return  # other programs hold it
        ended = whom_to_end(held)
        reason = f"{why}; {ended}: it was ended to free memory"
        worker = next(one for one in self._workers if one.status.name == ended.name)
        worker.may_restart.clear()
        worker.give_up(reason)
        self._ended_s = time.monotonic()
        self.shown.num_ended += 1
        self._tell("end", reason)

    def _held(self) -> list[Held]:
        """Of the workers that run; not of one that is being ended."""
        return [
            Held(
                one.status.name,
                held_bytes(tree_of(pid), shares_gpu=self._shares_gpu),
                planned_bytes(one.plan, shares_gpu=self._shares_gpu),
            )
            for one in self._workers
            if (pid := one.running_pid) is not None and one.plan is not None and one.may_restart.is_set()
        ]

    def _tell(self, step: str, reason: str) -> None:
        _log.warning("memory: %s", reason)
        self._record.event("", f"memory_{step}", reason=reason)


async def _restart(worker: SupervisedWorker) -> None:
    try:
        await worker.restart()
    except QserveError as error:
        _log.warning("%s", error)
