"""Retention: deletes old runs by age, then the oldest requests by size."""

from __future__ import annotations

import logging
import shutil
import sqlite3
import time
from dataclasses import dataclass
from pathlib import Path

from qserve.errors import UsageError
from qserve.units import format_bytes

__all__ = ["Retention", "forget", "stored_bytes", "trim"]

_log = logging.getLogger("qserve.runs")
_DAY_S = 86400.0
_SILENT_S = 600.0
# One transaction deletes so many requests: others that want to write wait for it.
_CHUNK = 20_000


@dataclass(frozen=True)
class Retention:
    """How long runs are kept and how large the store may grow.

    Attributes:
        max_age_days: runs that ended longer ago go, with their logs, and results as old.
        max_bytes: above it the oldest runs' requests go first, then those runs, then this run's oldest requests.
    """

    max_age_days: float = 90.0
    max_bytes: int = 1 << 30

    def __post_init__(self) -> None:
        if self.max_age_days <= 0 or self.max_bytes < 1 << 20:
            raise UsageError(
                f"runs kept for {self.max_age_days:g} days in {self.max_bytes} bytes: it must be more than 0 days and "
                "at least 1 MiB; change --keep-runs-days or --keep-runs-gib"
            )


def trim(connection: sqlite3.Connection, retention: Retention, path: Path, own: str) -> None:
    """Brings the store within `retention`. `own` is the id of the run that asks; no run that runs is taken away."""
    oldest = time.time() - retention.max_age_days * _DAY_S
    for number, name in _over(connection, own):
        seen = connection.execute("SELECT last_seen_unix_s FROM run WHERE number = ?", [number]).fetchone()
        if seen is not None and seen[0] < oldest:
            forget(connection, path, name)
    connection.execute("DELETE FROM result WHERE unix_s < ?", [oldest])
    if stored_bytes(connection) > retention.max_bytes:
        _shrink(connection, retention, path, own)
    connection.execute("PRAGMA incremental_vacuum").fetchall()


def forget(connection: sqlite3.Connection, path: Path, name: str) -> None:
    """Takes a run away: its rows, results and residuals, and its logs where they lie in the store's own folder."""
    found = connection.execute("SELECT number, folder FROM run WHERE id = ?", [name]).fetchone()
    if found is None:
        return
    number, folder = found
    while _delete_requests(connection, number):
        pass
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("DELETE FROM result WHERE run_id = ?", [name])
    connection.execute("DELETE FROM residual WHERE run_id = ?", [name])
    connection.execute("DELETE FROM run WHERE number = ?", [number])
    connection.execute("COMMIT")
    if Path(folder).resolve().parent == (path.parent / "runs").resolve():
        shutil.rmtree(folder, ignore_errors=True)


def stored_bytes(connection: sqlite3.Connection) -> int:
    """Pages in use; freed ones are given back to the file system soon."""
    pages, free, size = (
        connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
    )
    used: int = (pages - free) * size
    return used


def _shrink(connection: sqlite3.Connection, retention: Retention, path: Path, own: str) -> None:
    over = _over(connection, own)
    before = stored_bytes(connection)
    for number, _ in over:
        while stored_bytes(connection) > retention.max_bytes and _delete_requests(connection, number):
            pass
    for _, name in over:
        if stored_bytes(connection) > retention.max_bytes:
            forget(connection, path, name)
    running = [row[0] for row in connection.execute("SELECT number FROM run ORDER BY number")]
    for number in running:
        while stored_bytes(connection) > retention.max_bytes and _delete_requests(connection, number):
            pass
    _log.warning(
        "the run store %s was larger than %s: %s of the oldest records were removed (--keep-runs-gib)",
        path,
        format_bytes(retention.max_bytes),
        format_bytes(before - stored_bytes(connection)),
    )


def _over(connection: sqlite3.Connection, own: str) -> list[tuple[int, str]]:
    """Runs that are not running, oldest first."""
    rows = connection.execute(
        "SELECT number, id FROM run WHERE id != ? AND (ended_unix_s IS NOT NULL OR last_seen_unix_s < ?) "
        "ORDER BY started_unix_s",
        [own, time.time() - _SILENT_S],
    )
    return [(number, name) for number, name in rows]


def _delete_requests(connection: sqlite3.Connection, number: int) -> int:
    """The oldest ones of a run, one chunk; how many there were."""
    connection.execute("BEGIN IMMEDIATE")
    deleted = connection.execute(
        "DELETE FROM request WHERE run = ?1 AND number < (SELECT min(number) FROM request WHERE run = ?1) + ?2",
        [number, _CHUNK],
    ).rowcount
    connection.execute("COMMIT")
    return deleted
