"""The run store in the gateway: reads runs for its routes, and records finished requests."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from qserve.errors import UsageError
from qserve.gateway.telemetry.record import RequestRecord
from qserve.runs import RunStore, StoredRun, StoreUnusable
from qserve.runs.document import run_document, runs_document, trainings_document
from qserve.wire.errors import ApiError

__all__ = ["RunHistory"]

_log = logging.getLogger("qserve.gateway")
_MOST_RUNS = 200
# In a thread of ours up to here (a tenth of a second), in a process of its own beyond.
_MANY_REQUESTS = 50_000
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class RunHistory:
    """The store, the run of this gateway, and where its finished requests go.

    Attributes:
        store: None if nothing is recorded; then there are no runs to show.
        run_id: of this run.
        keep: records a finished request; returns at once and never raises.
    """

    store: RunStore | None = None
    run_id: str | None = None
    keep: Callable[[RequestRecord], None] = lambda record: None

    def used_today(self) -> dict[str, tuple[int, int, int]]:
        """Requests, prompt and generated tokens of each key since 00:00 UTC; none where the store can't be read."""
        if self.store is None:
            return {}
        try:
            return self.store.used_by_key(86400 * (int(time.time()) // 86400))
        except StoreUnusable as error:
            _log.warning("%s. What keys have used today counts from now on", error)
            return {}

    async def documents(self) -> dict[str, Any]:
        """The newest runs. Raises ApiError if the store can't be read."""
        if self.store is None:
            return {"object": "list", "data": []}
        return await _asked(runs_document, self.store, _MOST_RUNS)

    async def trainings(self) -> dict[str, Any]:
        """The newest training runs. Raises ApiError if the store can't be read."""
        if self.store is None:
            return {"object": "list", "state_dir": None, "data": []}
        return await _asked(trainings_document, self.store)

    async def document(self, name: str) -> dict[str, Any]:
        """One run by its id or the beginning of one. Raises ApiError where there is none."""
        if self.store is None:
            raise ApiError(404, "no runs are kept here", "run_not_found", "run")
        run = await _asked(self.store.run, name)
        if run.num_requests > _MANY_REQUESTS:
            return await _by_process(self.store, run)
        return await _asked(run_document, self.store, run)


async def _by_process(store: RunStore, run: StoredRun) -> dict[str, Any]:
    """A run's document from a process of its own: summing a million requests here would stall streams for 2 s."""
    command = ("-m", "qserve", "runs", "show", run.id, "--json", "--state-dir", str(store.path.parent.parent))
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        answer, errors = await process.communicate()
    except asyncio.CancelledError:  # the client has left
        process.kill()
        await process.wait()
        raise
    if process.returncode:
        last = errors.decode(errors="replace").strip().rpartition("\n")[2]
        raise ApiError(503, f"the run could not be summed up: {last}", "run_store_unusable")
    document: dict[str, Any] = json.loads(answer)
    return document


async def _asked(read: Callable[..., Answer], *arguments: Any) -> Answer:
    """In a thread: SQLite waits for disks."""
    try:
        return await asyncio.to_thread(read, *arguments)
    except UsageError as error:
        raise ApiError(404, str(error), "run_not_found", "run") from error
    except StoreUnusable as error:
        raise ApiError(503, str(error), "run_store_unusable") from error
