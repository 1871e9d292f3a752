"""GET /report: pages are rendered in a separate process, one at a time, and cached for a few seconds."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Mapping
from typing import Any

from qserve.gateway.run_history import RunHistory
from qserve.wire.errors import ApiError

__all__ = ["HTML", "POLICY", "ReportPages"]

HTML = b"text/html; charset=utf-8"
POLICY = b"default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
_SHOWN_FOR_S = 2.0
_NOT_FOUND = 2


class ReportPages:
    """Report pages of recorded runs."""

    def __init__(self, runs: RunHistory) -> None:
        self._runs = runs
        self._alone = asyncio.Lock()
        self._last: tuple[str, float, bytes] = ("", 0.0, b"")

    async def page(self, run: str | None, live: Mapping[str, Any]) -> bytes:
        """The page of this run, by its id or the beginning of one; None: of the run that answers, with what its
        workers tell now.

        Raises ApiError where there is none.
        """
        name = run or self._runs.run_id
        if self._runs.store is None or name is None:
            raise ApiError(404, "no runs are kept here, so there is nothing to report", "run_not_found", "run")
        async with self._alone:
            shown, made_s, page = self._last
            if shown != name or time.monotonic() - made_s > _SHOWN_FOR_S:
                page = await _made(str(self._runs.store.path), name, {} if run else live)
                self._last = name, time.monotonic(), page
        return page


async def _made(store: str, run: str, live: Mapping[str, Any]) -> bytes:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "qserve.worker.low_priority",
        "qserve.report",
        store,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        page, errors = await process.communicate(json.dumps({"run": run, "live": live}).encode())
    except asyncio.CancelledError:  # the client has left
        process.kill()
        await process.wait()
        raise
    if process.returncode == _NOT_FOUND:
        raise ApiError(404, errors.decode(errors="replace").strip(), "run_not_found", "run")
    if process.returncode:
        last = errors.decode(errors="replace").strip().rpartition("\n")[2]
        raise ApiError(503, f"the report could not be made: {last}", "run_store_unusable", retry_after_s=5)
    return page
