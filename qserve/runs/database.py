"""Opening the store's file: new, from an older qserve, in use by others, broken, or not ours to read."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

from qserve.errors import QserveError
from qserve.runs.private import make_private
from qserve.runs.schema import MIGRATIONS
from qserve.runs.write_ahead import write_ahead

__all__ = ["FILE_NAME", "StoreUnusable", "connect", "is_broken", "unusable"]

FILE_NAME = "runs.sqlite3"
_log = logging.getLogger("qserve.runs")
_BUSY_S = 5.0
_BROKEN = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_WAL_BYTES = 16 << 20


class StoreUnusable(QserveError):
    """The run store can't be read or written; the message says why and what to do."""


def connect(path: Path, busy_s: float = _BUSY_S) -> sqlite3.Connection:
    """The store at `path` with this release's schema, in autocommit; made or migrated where that is needed.

    A broken file is set aside under another name, with a warning, and a new one begun. Raises StoreUnusable where the
    folder can't be written or the file belongs to a newer qserve, sqlite3.Error for what may pass (locked, disk full).
    """
    try:
        make_private(path.parent)
        try:
            connection = _opened(path, busy_s)
            if _version(connection) == len(MIGRATIONS):
                return connection
            connection.close()
        except sqlite3.DatabaseError as error:
            if not is_broken(error):
                raise
        with _alone(path):
            return _brought_up_to_date(path, busy_s)
    except OSError as error:
        raise StoreUnusable(
            f"the run store {path} can't be opened: {error.strerror}. Choose another folder with --state-dir"
        ) from error


def is_broken(error: sqlite3.Error) -> bool:
    """Whether the file itself is wrong, rather than busy, full or out of reach."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _BROKEN


def unusable(path: Path, error: sqlite3.Error) -> StoreUnusable:
    """What SQLite said, as a user can act on it."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    hint = {
        sqlite3.SQLITE_BUSY: "another process has locked it; try again",
        sqlite3.SQLITE_FULL: "the disk is full; free some space",
        sqlite3.SQLITE_READONLY: "it is read-only; choose another folder with --state-dir",
        sqlite3.SQLITE_CANTOPEN: "check the permissions of its folder, or choose another folder with --state-dir",
        sqlite3.SQLITE_CORRUPT: "it is broken; the next `qserve up` sets it aside and begins a new one",
    }.get(code, "look at the file and its folder, or choose another place with --state-dir")
    return StoreUnusable(f"the run store {path}: {error}; {hint}")


def _opened(path: Path, busy_s: float) -> sqlite3.Connection:
    # The file is made here, so that nobody else can read it; the files beside it inherit its rights. One that exists
    # is not opened: closing it again would drop this process's locks on it.
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    connection = sqlite3.connect(path, timeout=busy_s, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # counts for a new file only
        write_ahead(connection, busy_s)
        # A killed process loses nothing that it committed, a power cut at most the last commits; neither breaks it.
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute(f"PRAGMA journal_size_limit = {_WAL_BYTES}")
        _check_is_ours(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def _check_is_ours(connection: sqlite3.Connection, path: Path) -> None:
    """Reads the schema, which is where a file that is no store shows itself."""
    version = _version(connection)
    if version > len(MIGRATIONS):
        raise StoreUnusable(
            f"the run store {path} is of a newer qserve (schema {version}; this one knows {len(MIGRATIONS)}); update "
            "qserve, or choose another folder with --state-dir"
        )
    names = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    if version and "run" not in names:
        raise StoreUnusable(f"{path} is a SQLite file, but not a run store; move it, or choose another --state-dir")


def _version(connection: sqlite3.Connection) -> int:
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return version


def _brought_up_to_date(path: Path, busy_s: float) -> sqlite3.Connection:
    """With the lock held: somebody else may have done it meanwhile."""
    try:
        connection = _opened(path, busy_s)
    except sqlite3.DatabaseError as error:
        if not is_broken(error):
            raise
        _set_aside(path, error)
        connection = _opened(path, busy_s)
    try:
        for step in range(_version(connection), len(MIGRATIONS)):
            connection.executescript(f"BEGIN IMMEDIATE; {MIGRATIONS[step]} PRAGMA user_version = {step + 1}; COMMIT;")
    except BaseException:
        connection.close()
        raise
    return connection


def _set_aside(path: Path, error: sqlite3.Error) -> None:
    kept = path.with_name(f"{path.name}.broken-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}")
    for end in ("-wal", "-shm", ""):
        with contextlib.suppress(FileNotFoundError):
            path.with_name(path.name + end).rename(kept.with_name(kept.name + end))
    _log.warning("the run store %s is broken (%s); it is kept as %s, and a new one is begun", path, error, kept.name)


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """No other process makes, migrates or sets aside the file meanwhile."""
    with path.with_name(path.name + ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
