"""Rows of the store's tables as the records that readers get."""

from __future__ import annotations

import json
import sqlite3
import time
from pathlib import Path
from typing import Any

from qserve.runs.process import here, is_gone
from qserve.runs.records import MemorySample, RunState, StoredRun, StoredWorker

__all__ = ["RUN_COLUMNS", "run_of", "sample_of", "state_of"]

RUN_COLUMNS = (
    "number, id, started_unix_s, last_seen_unix_s, ended_unix_s, exit_status, host, pid, process_start, command, "
    "versions, hardware, folder, url, num_requests, num_errors, num_lost, started_by"
)
"""What `run_of` reads, in its order."""
_SILENT_S = 30.0
"""A run that wrote nothing for so long, not even that it lives, is gone."""


def run_of(connection: sqlite3.Connection, row: Any) -> StoredRun:
    (
        number,
        name,
        started,
        last_seen,
        ended,
        exit_status,
        host,
        pid,
        process_start,
        command,
        versions,
        hardware,
        folder,
        url,
        num_requests,
        num_errors,
        num_lost,
        started_by,
    ) = row
    return StoredRun(
        name,
        started,
        last_seen,
        ended,
        exit_status,
        state_of(ended, last_seen, host, pid, process_start),
        tuple(json.loads(command)),
        json.loads(versions),
        json.loads(hardware),
        Path(folder),
        url,
        num_requests,
        num_errors,
        num_lost,
        _workers(connection, number),
        started_by,
    )


def state_of(ended: float | None, last_seen: float, host: str, pid: int, process_start: str) -> RunState:
    """Where the process can be looked up it is; else (another host's, a container's) its last sign of life counts."""
    if ended is not None:
        return "ended"
    if host == here() and process_start:
        return "died" if is_gone(pid, process_start) else "running"
    return "running" if time.time() - last_seen < _SILENT_S else "died"


def _workers(connection: sqlite3.Connection, number: int) -> tuple[StoredWorker, ...]:
    plans: dict[str, list[dict[str, Any]]] = {}
    models: dict[str, tuple[str, ...]] = {}
    for worker, unix_s, names, text in connection.execute(
        "SELECT worker, unix_s, models, document FROM plan WHERE run = ? ORDER BY unix_s, rowid", [number]
    ):
        plans.setdefault(worker, []).append({**json.loads(text), "unix_s": unix_s})
        models[worker] = tuple(json.loads(names))
    starts: dict[str, dict[str, float]] = {}
    restarts: dict[str, int] = {}
    for worker, event, text in connection.execute(
        "SELECT worker, event, details FROM event WHERE run = ? AND event IN ('ready', 'restart') "
        "ORDER BY unix_s, rowid",
        [number],
    ):
        if event == "restart":
            restarts[worker] = restarts.get(worker, 0) + 1
        elif worker not in starts:
            starts[worker] = json.loads(text).get("phases_s", {})
    return tuple(
        StoredWorker(name, models[name], of_worker[-1], tuple(of_worker), starts.get(name, {}), restarts.get(name, 0))
        for name, of_worker in plans.items()
    )


def sample_of(unix_s: float, worker: str, moment: str, text: str) -> MemorySample:
    document = json.loads(text)
    terms = {
        name: value
        for name, value in document.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and name.endswith(("_bytes", "_tokens"))
    }
    return MemorySample(unix_s, worker, moment, terms, document if moment != "serving" else {})
