"""Runs one batch: sends its lines as workers have free slots, and stores the answers as they arrive."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import random
import time
from collections.abc import Awaitable, Iterator
from dataclasses import dataclass
from typing import Protocol

from qserve.batches.batches import BatchStore
from qserve.batches.lines import Request, input_lines, read_request
from qserve.batches.records import StoredBatch
from qserve.batches.results import Results

__all__ = ["BatchRun", "LineReply", "Service"]

_log = logging.getLogger("qserve.batches")
_COUNT_S = 1.0
_LOOK_S = 0.1
_LINES_AT_ONCE = 64
# What passes by itself: a worker that restarts, a queue that is full, a service that stops.
_PASSING = frozenset(
    {"queue_full", "worker_not_ready", "worker_unreachable", "draining", "memory_low", "model_not_loaded"}
)
_MOST_FAILURES = 3
_FIRST_PAUSE_S, _MOST_PAUSE_S = 0.5, 30.0
_UNSENT = {
    "expired": ("batch_expired", "this request was not answered within the batch's completion window"),
    "cancelled": ("batch_cancelled", "the batch was cancelled before this request was answered"),
}


@dataclass(frozen=True)
class LineReply:
    """What came back for one line."""

    status: int
    request_id: str
    body: bytes

    @property
    def code(self) -> str:
        """The error's `code`; "" where it has none."""
        try:
            error = json.loads(self.body)["error"]
            return str(error.get("code") or "") if isinstance(error, dict) else ""
        except (ValueError, KeyError, TypeError):
            return ""


class Service(Protocol):
    """The service whose models answer."""

    def models(self) -> tuple[str, ...]:
        """Every name that a line may ask for."""

    def refusal(self, endpoint: str, model: str) -> str | None:
        """Why `model` can't answer `endpoint`; None where it can."""

    def free_slots(self, endpoint: str, model: str, owner: str) -> int:
        """Requests of this owner that would run at once, or next: owners have equal shares, and all others go first."""

    def ask(self, endpoint: str, body: bytes, owner: str) -> Awaitable[LineReply]:
        """Asks as a client with this owner's key does, but behind all others."""

    @property
    def max_body_bytes(self) -> int:
        """Of one line's body."""


class BatchRun:
    """Runs a batch that is in progress, from wherever an earlier run of it was ended."""

    def __init__(self, store: BatchStore, service: Service, batch: StoredBatch) -> None:
        self._store = store
        self._service = service
        self._batch = batch
        self._results = Results(store.files, batch)
        self._asking: set[asyncio.Task[None]] = set()
        self._ended_as = self._end_of(batch)
        self._has_space = True

    async def run(self) -> StoredBatch:
        """The batch as it ended. Cancelled it stops where it is. Raises OSError where results can't be written."""
        await asyncio.to_thread(self._results.open)
        try:
            counting = asyncio.create_task(self._count())
            try:
                await self._ask_all()
            finally:
                for task in (counting, *self._asking):
                    task.cancel()
                await asyncio.gather(counting, *self._asking, return_exceptions=True)
            return await self._finish()
        finally:
            self._results.close()

    async def _ask_all(self) -> None:
        lines = self._lines()
        while not self._ended_as and (some := await asyncio.to_thread(_next_of, lines)):
            for request in some:
                if request.custom_id in self._results.answered:
                    continue
                if not await self._until_free():
                    break
                self._begin(request)
                await asyncio.sleep(0)  # it takes its slot before the next one is looked for
                await asyncio.sleep(0)
        while self._asking and not self._ended_as:
            await self._some_time()

    def _begin(self, request: Request) -> None:
        task = asyncio.create_task(self._answer(request))
        self._asking.add(task)

    async def _until_free(self) -> bool:
        """Whether another line may be asked; False where the batch is to end. Waits for space for its answer, too."""
        while not self._ended_as:
            self._raise_failures()
            is_free = self._service.free_slots(self._batch.endpoint, self._batch.model, self._batch.owner) > 0
            if self._has_space and is_free:
                return True
            await self._some_time()
        return False

    async def _some_time(self) -> None:
        """Until something may have changed. Raises what an answer failed with."""
        if self._asking:
            await asyncio.wait(self._asking, timeout=_LOOK_S, return_when=asyncio.FIRST_COMPLETED)
        else:
            await asyncio.sleep(_LOOK_S)
        self._raise_failures()

    def _raise_failures(self) -> None:
        for task in [task for task in self._asking if task.done()]:
            self._asking.remove(task)
            task.result()

    async def _answer(self, request: Request) -> None:
        """Asks until there is an answer that stays: what passes by itself is waited for."""
        num_failures, pause_s = 0, _FIRST_PAUSE_S
        while True:
            reply = await self._service.ask(self._batch.endpoint, bytes(request.body), self._batch.owner)
            if reply.status < 500 and reply.status != 429:
                break
            if reply.code not in _PASSING:
                num_failures += 1
                if num_failures == _MOST_FAILURES:
                    break
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.5))  # noqa: S311 - apart from each other, no secret
            pause_s = min(2 * pause_s, _MOST_PAUSE_S)
        self._results.add(request.custom_id, reply.status, reply.request_id, reply.body)

    async def _count(self) -> None:
        """Tells how far it is, and hears whether it is to end, and whether there is space for answers."""
        while not self._ended_as:
            await self._look_for_space()
            await asyncio.sleep(_COUNT_S)
            counts = (self._results.num_completed, self._results.num_failed)
            self._ended_as = self._end_of(await asyncio.to_thread(self._store.count, self._batch.id, *counts))

    async def _look_for_space(self) -> None:
        has_space = not await asyncio.to_thread(self._store.files.space.is_full)
        if self._has_space and not has_space:
            _log.warning("batch %s waits: files have reached --keep-files-gib", self._batch.id)
        self._has_space = has_space

    @staticmethod
    def _end_of(batch: StoredBatch) -> str:
        """How it ends before its last line is answered; "" while it goes on."""
        if batch.status == "cancelling":
            return "cancelled"
        return "expired" if time.time() >= batch.expires_at else ""

    async def _finish(self) -> StoredBatch:
        if self._ended_as:
            await asyncio.to_thread(self._write_unsent, *_UNSENT[self._ended_as])
        counts = (self._results.num_completed, self._results.num_failed)
        await asyncio.to_thread(self._store.move, self._batch.id, "finalizing")
        files = await asyncio.to_thread(self._results.finish)
        status = self._ended_as or "completed"
        return await asyncio.to_thread(self._store.finish, self._batch.id, status, counts, files)

    def _write_unsent(self, code: str, message: str) -> None:
        for request in self._lines():
            if request.custom_id not in self._results.answered:
                self._results.add_unsent(request.custom_id, code, message)

    def _lines(self) -> Iterator[Request]:
        path = self._store.files.path(self._batch.input_file_id)
        for _, line in input_lines(path, self._service.max_body_bytes):
            if line is not None:
                yield read_request(line)


def _next_of(lines: Iterator[Request]) -> list[Request]:
    return list(itertools.islice(lines, _LINES_AT_ONCE))
