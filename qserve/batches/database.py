"""The SQLite database of files and batches, which several processes may open."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from qserve.errors import QserveError
from qserve.runs.private import make_private
from qserve.runs.write_ahead import write_ahead

__all__ = ["Database", "FilesUnusable"]

_VERSION = 1
_BUSY_S = 10.0
_SCHEMA = """
CREATE TABLE IF NOT EXISTS file (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, owner TEXT NOT NULL, filename TEXT NOT NULL,
    purpose TEXT NOT NULL, num_bytes INTEGER NOT NULL, created_at INTEGER NOT NULL, expires_at INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS batch (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, owner TEXT NOT NULL, endpoint TEXT NOT NULL,
    input_file_id TEXT NOT NULL, completion_window TEXT NOT NULL, status TEXT NOT NULL, created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL, output_file_id TEXT NOT NULL, error_file_id TEXT NOT NULL, served TEXT NOT NULL,
    model TEXT NOT NULL, num_total INTEGER NOT NULL, num_completed INTEGER NOT NULL, num_failed INTEGER NOT NULL,
    output_keep_s INTEGER, times TEXT NOT NULL, metadata TEXT, errors TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS batch_status ON batch (status);
"""


class FilesUnusable(QserveError):
    """The folder of files can't be read or written; the message says why and what to do."""


class Database:
    """One connection, used by any thread, one statement at a time. It is opened when it is first asked."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None

    def exists(self) -> bool:
        """Whether anything was ever kept here."""
        return self.path.exists()

    def ask(self, statement: str, values: Sequence[Any] = ()) -> list[dict[str, Any]]:
        """The rows of one statement, which is committed at once. Raises FilesUnusable."""
        with self.transaction() as ask:
            rows: list[dict[str, Any]] = ask(statement, values)
            return rows

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        """`with database.transaction() as ask:` all statements or none. Raises FilesUnusable."""
        with self._lock:
            try:
                connection = self._connection = self._connection or _opened(self.path)
                connection.execute("BEGIN IMMEDIATE")
                try:
                    yield lambda statement, values=(): connection.execute(statement, values).fetchall()
                except BaseException:
                    connection.execute("ROLLBACK")
                    raise
                connection.execute("COMMIT")
            except (sqlite3.Error, OSError) as error:
                raise FilesUnusable(
                    f"the folder of files {self.path.parent}: {error}; look at its rights and at the disk, or choose "
                    "another with --state-dir"
                ) from error

    def close(self) -> None:
        """Until it is asked again."""
        with self._lock:
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()


def _opened(path: Path) -> sqlite3.Connection:
    make_private(path.parent)
    with suppress(FileExistsError):  # made here, so that nobody else can read it
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    connection = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
    try:
        connection.row_factory = lambda cursor, row: dict(
            zip((column[0] for column in cursor.description), row, strict=True)
        )
        write_ahead(connection, _BUSY_S)
        connection.execute("PRAGMA synchronous = NORMAL")
        _bring_up_to_date(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def _bring_up_to_date(connection: sqlite3.Connection, path: Path) -> None:
    version = connection.execute("PRAGMA user_version").fetchone()["user_version"]
    if version > _VERSION:
        raise FilesUnusable(f"{path} is of a newer qserve (schema {version}); update qserve, or choose --state-dir")
    if version < _VERSION:
        connection.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} PRAGMA user_version = {_VERSION}; COMMIT;")
