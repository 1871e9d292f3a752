"""Runs, in the background, every batch of the state folder whose model this service serves.

Several processes may look at the same folder: who gets a batch's lock runs it (`BatchStore.claimed`), the others leave
it alone. One that was killed loses its locks, and another process, or the next one, goes on where it was.

Owners take turns: who has fewest batches running is next, and an owner that has none never waits for another's to end.
Whose lines are asked is decided slot by slot, by the service.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial

from qserve.batches.batches import BatchStore
from qserve.batches.check import checked
from qserve.batches.database import FilesUnusable
from qserve.batches.files import FileStore
from qserve.batches.records import LineError, StoredBatch
from qserve.batches.run import BatchRun, LineReply, Service
from qserve.errors import QserveError
from qserve.wire.errors import ApiError

__all__ = ["BatchRunner", "LineReply", "Service"]

_log = logging.getLogger("qserve.batches")
_LOOK_S = 1.0
_REST_S = 5.0  # where there is nothing to do
_SWEEP_S = 600.0
# After a failure that is no client's: a full disk, a folder that is out of reach.
_PAUSE_S = 30.0
_MOST_AT_ONCE = 32
_MOST_OF_ONE = 4
"""Batches of one owner. Its others wait: they would only share its slots."""


class BatchRunner:
    """`run` until it is cancelled. `wake` says that there is a new batch."""

    def __init__(self, files: FileStore, service: Service) -> None:
        self.store = BatchStore(files)
        self._service = service
        self._running: dict[str, asyncio.Task[None]] = {}
        self._owners: dict[str, str] = {}  # of those that run
        self._not_before_s: dict[str, float] = {}
        self._woken = asyncio.Event()
        self._swept_s = float("-inf")

    def wake(self) -> None:
        """Look now."""
        self._woken.set()

    async def run(self) -> None:
        """Looks for batches and runs them; cancelled it leaves each as it is."""
        try:
            while True:
                self._woken.clear()
                pause_s = await self._look_safely()
                try:
                    async with asyncio.timeout(pause_s):
                        await self._woken.wait()
                except TimeoutError:
                    pass
        finally:
            for task in self._running.values():
                task.cancel()
            await asyncio.gather(*self._running.values(), return_exceptions=True)

    async def _look_safely(self) -> float:
        """Seconds until the next look."""
        try:
            return await self._look()
        except (FilesUnusable, OSError) as error:
            _log.warning("batches are paused: %s", error)
            return _PAUSE_S

    async def _look(self) -> float:
        unfinished = await asyncio.to_thread(self.store.unfinished)
        waiting = [batch for batch in unfinished if self._is_waiting(batch)]
        while (batch := self._next(waiting)) is not None:
            waiting.remove(batch)
            task = asyncio.create_task(self._run_claimed(batch.id))
            self._running[batch.id], self._owners[batch.id] = task, batch.owner
            task.add_done_callback(partial(self._forget, batch.id))
        if self.store.files.database.exists() and time.monotonic() - self._swept_s > _SWEEP_S:
            self._swept_s = time.monotonic()
            await asyncio.to_thread(self.store.files.sweep)
        return _LOOK_S if unfinished else _REST_S

    def _forget(self, batch_id: str, _: asyncio.Task[None]) -> None:
        self._running.pop(batch_id, None)
        self._owners.pop(batch_id, None)

    def _is_waiting(self, batch: StoredBatch) -> bool:
        is_time = time.monotonic() >= self._not_before_s.get(batch.id, 0.0)
        return is_time and batch.id not in self._running and self._is_ours(batch)

    def _next(self, waiting: Sequence[StoredBatch]) -> StoredBatch | None:
        """The batch that is begun now: one that is to end, or the oldest of the owner with fewest running."""
        ending = next((batch for batch in waiting if _is_to_end(batch)), None)
        if ending is not None or not waiting:
            return ending
        running = Counter(self._owners.values())
        batch = min(waiting, key=lambda batch: running[batch.owner])
        may_begin = running[batch.owner] < _MOST_OF_ONE and len(self._running) < _MOST_AT_ONCE
        return batch if may_begin or not running[batch.owner] else None

    def _is_ours(self, batch: StoredBatch) -> bool:
        """Its model is served here; or it is to end, which needs no model."""
        names = self._service.models()
        is_served = batch.model in names if batch.model else not set(batch.served).isdisjoint(names)
        return is_served or _is_to_end(batch)

    async def _run_claimed(self, batch_id: str) -> None:
        try:
            with self.store.claimed(batch_id) as is_claimed:
                if is_claimed:
                    await self._run_one(batch_id)
        except (ApiError, QserveError, OSError) as error:
            _log.warning("batch %s is paused for %g s: %s", batch_id, _PAUSE_S, error)
            self._not_before_s[batch_id] = time.monotonic() + _PAUSE_S
        except Exception:
            _log.exception("batch %s failed; it is paused for %g s", batch_id, _PAUSE_S)
            self._not_before_s[batch_id] = time.monotonic() + _PAUSE_S

    async def _run_one(self, batch_id: str) -> None:
        batch = await asyncio.to_thread(self.store.get, batch_id)
        if batch.status == "validating" and time.time() < batch.expires_at:
            batch = await self._checked(batch)
        if batch.has_ended:
            return
        if batch.model:
            await BatchRun(self.store, self._service, batch).run()
        else:  # it was cancelled, or its time was over, before its lines were looked at
            status = "cancelled" if batch.status == "cancelling" else "expired"
            await asyncio.to_thread(self.store.finish, batch.id, status, (0, 0), {})

    async def _checked(self, batch: StoredBatch) -> StoredBatch:
        """The batch in progress, or failed where its input can't be run."""
        path = self.store.files.path(batch.input_file_id)
        most = self.store.files.bounds.max_lines
        found = await checked(path, batch.endpoint, most, self._service.max_body_bytes)
        errors = list(found.errors)
        if not errors and (why := self._service.refusal(batch.endpoint, found.model)) is not None:
            errors.append(LineError("model_not_found", why, 1, "body.model"))
        if errors:
            return await asyncio.to_thread(self.store.fail, batch.id, errors, found.num_lines)
        counts = {"model": found.model, "num_total": found.num_lines}
        return await asyncio.to_thread(lambda: self.store.move(batch.id, "in_progress", **counts))


def _is_to_end(batch: StoredBatch) -> bool:
    """Whether nothing more is asked for it."""
    return batch.status == "cancelling" or time.time() > batch.expires_at
