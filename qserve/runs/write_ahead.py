"""SQLite's write-ahead log, for databases that several processes open."""

from __future__ import annotations

import sqlite3
import time

__all__ = ["write_ahead"]

_PAUSE_S = 0.01


def write_ahead(connection: sqlite3.Connection, timeout_s: float) -> None:
    """Readers and the writer no longer wait for each other.

    The first to open a database changes its file, and SQLite tells the others at once that it is locked, whatever the
    connection's own timeout. Raises sqlite3.OperationalError where that lasts for `timeout_s`.
    """
    ends_s = time.monotonic() + timeout_s
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() >= ends_s:
                raise
        time.sleep(_PAUSE_S)
