"""Databases that many open at once, for the first time."""

from __future__ import annotations

import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from qserve.batches.database import Database
from qserve.runs.write_ahead import write_ahead


@pytest.mark.parametrize("round_", range(12))
def test_those_that_open_a_new_database_at_once_all_get_it(tmp_path: Path, round_: int) -> None:
    together = threading.Barrier(12)

    def opened(_: int) -> int:
        database = Database(tmp_path / "files" / "files.sqlite3")  # a connection of its own, as in its own process
        together.wait()
        rows = database.ask("SELECT count(*) AS num FROM file")
        database.close()
        return int(rows[0]["num"])

    with ThreadPoolExecutor(12) as pool:
        assert list(pool.map(opened, range(12))) == [0] * 12


def test_a_lock_that_stays_is_told(tmp_path: Path) -> None:
    path = tmp_path / "one.sqlite3"
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    waiting = sqlite3.connect(path, timeout=0, isolation_level=None)
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        write_ahead(waiting, 0.05)
    holder.execute("ROLLBACK")
    write_ahead(waiting, 0.05)
    assert waiting.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    waiting.close()
    holder.close()
