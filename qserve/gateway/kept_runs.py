"""The run store as the gateway sees it: what it shows of runs, and where requests go that are over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from qserve.errors import UsageError
from qserve.gateway.record import RequestRecord
from qserve.runs import RunStore, StoreUnusable
from qserve.runs.document import run_document, runs_document
from qserve.wire.errors import ApiError

__all__ = ["KeptRuns"]

_MOST_RUNS = 200


@dataclass(frozen=True)
class KeptRuns:
    """The store, the run that this gateway belongs to, and what takes its requests.

    Attributes:
        store: None where nothing is kept: there are no runs to show then.
        run_id: of this run.
        keep: takes a request that is over; returns at once and never raises.
    """

    store: RunStore | None = None
    run_id: str | None = None
    keep: Callable[[RequestRecord], None] = lambda record: None

    async def documents(self) -> dict[str, Any]:
        """The newest runs. Raises ApiError where the store can't be read."""
        if self.store is None:
            return {"object": "list", "data": []}
        return await _asked(runs_document, self.store, _MOST_RUNS)

    async def document(self, name: str) -> dict[str, Any]:
        """One run by its id or the beginning of one. Raises ApiError where there is none."""
        if self.store is None:
            raise ApiError(404, "no runs are kept here", "run_not_found", "run")
        return await _asked(_found, self.store, name)


def _found(store: RunStore, name: str) -> dict[str, Any]:
    return run_document(store, store.run(name))


async def _asked(read: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    """In a thread: SQLite waits for disks."""
    try:
        return await asyncio.to_thread(read, *arguments)
    except UsageError as error:
        raise ApiError(404, str(error), "run_not_found", "run") from error
    except StoreUnusable as error:
        raise ApiError(503, str(error), "run_store_unusable") from error
