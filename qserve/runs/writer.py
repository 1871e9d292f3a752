"""Writes a run while it serves: a thread takes records from two bounded queues.

Nothing that serves waits for a disk: to leave something costs an append to a deque. The thread commits twice a second.
Where it can't (disk full, store locked, broken, of a newer qserve) it warns once, tries again, and counts what the
queues had no room for; the service does not notice.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from qserve.planner.calibration import Residual
from qserve.runs.database import FILE_NAME, StoreUnusable, connect, unusable
from qserve.runs.process import here, start_of
from qserve.runs.retention import Retention, trim
from qserve.runs.statements import (
    COUNT,
    INSERT_EVENT,
    INSERT_MEMORY,
    INSERT_PLAN,
    INSERT_REQUESTS,
    INSERT_RUN,
    REPLACE_RESIDUAL,
)
from qserve.runs.trainings import REPLACE_TRAINING

__all__ = ["NewRun", "RequestLabel", "RequestRow", "RunWriter"]

_log = logging.getLogger("qserve.runs")
_COMMIT_S = 0.5
_RETRY_S = 5.0
_BUSY_S = 2.0
_SIGN_OF_LIFE_S = 5.0
_TRIM_S = 3600.0
_MOST_REQUESTS = 50_000
_MOST_FACTS = 10_000
_BATCH = 5_000
_CLOSE_S = 5.0
# Pages of the file that the writer's connection keeps; it only adds at the end. SQLite's own 2 MiB would be full after
# 30,000 requests, in which time the gateway would seem to leak (bench/gateway_memory.py).
_CACHE_KIB = 256


@dataclass(frozen=True)
class NewRun:
    """What is known of a run when it begins.

    Attributes:
        command: stored as it is; leave secrets out before.
        started_by: the command that started it for itself (`compare`, `eval`), "" for a user's own.
    """

    id: str
    command: tuple[str, ...]
    versions: Mapping[str, str]
    hardware: Mapping[str, Any]
    folder: Path
    started_by: str = ""


class RequestLabel(NamedTuple):
    """What many requests have in common; nothing of it comes from a client's text."""

    method: str
    route: str
    model: str
    worker: str
    status: int
    error_code: str
    is_background: bool
    client_left: bool


class RequestRow(NamedTuple):
    """One request that is over. Durations in microseconds, None where there was none; no content."""

    label: RequestLabel
    began_unix_ms: int
    e2e_us: int
    queued_us: int | None
    ttft_us: int | None
    prompt_tokens: int | None
    completion_tokens: int | None
    num_events: int
    request_id: str
    key: str | None = None


class RunWriter:
    """Writes one run, from its making to `close`. Every method but that one returns at once, and none raises."""

    def __init__(self, state_folder: Path, run: NewRun, retention: Retention) -> None:
        """Starts the thread; the run is in the store within a second, if the store can be written."""
        self.path = state_folder / FILE_NAME
        self.run = run
        self._retention = retention
        self._started_unix_s = time.time()
        self._requests: deque[RequestRow] = deque()
        self._facts: deque[tuple[str, tuple[Any, ...]]] = deque(maxlen=_MOST_FACTS)
        self._plans: list[tuple[str, tuple[Any, ...]]] = []
        self._labels: dict[RequestLabel, int] = {}
        self._connection: sqlite3.Connection | None = None
        self._inode = 0
        self._next_number = 0
        self._num_lost = self._num_lost_told = 0
        self._beat_s = self._trimmed_s = float("-inf")
        self._warned = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="run store", daemon=True)
        self._thread.start()

    def request(self, row: RequestRow) -> None:
        """Keep a request that is over."""
        if len(self._requests) < _MOST_REQUESTS:
            self._requests.append(row)
        else:
            self._num_lost += 1

    def plan(self, worker: str, models: tuple[str, ...], plan: Mapping[str, Any]) -> None:
        """Keep the plan that a worker is about to be started from."""
        fact = (INSERT_PLAN, (worker, time.time(), _text(models), _text(plan)))
        self._facts.append(fact)  # first: `_insert_run` leaves to the queue what is in it
        self._plans.append(fact)

    def memory(self, worker: str, moment: str, document: Mapping[str, Any]) -> None:
        """Keep what a worker holds: at `ready` and `end` the whole document, between them its numbers."""
        if moment == "serving":
            document = {name: value for name, value in document.items() if isinstance(value, int | float)}
        self._facts.append((INSERT_MEMORY, (worker, time.time(), moment, _text(document))))

    def event(self, worker: str, event: str, details: Mapping[str, Any]) -> None:
        """Keep something that happened."""
        self._facts.append((INSERT_EVENT, (time.time(), worker, event, _text(details))))

    def training(self, name: str, document: Mapping[str, Any]) -> None:
        """Keep how far a training run is, in place of what was kept of it before."""
        self._facts.append((REPLACE_TRAINING, (self.run.id, time.time(), name, _text(document))))

    def learn(self, worker: str, residuals: Iterable[Residual]) -> None:
        """Keep what the next plan may learn; a term that was measured before is replaced."""
        for one in residuals:
            about = (one.engine, one.engine_version, one.device, one.on_cpu, one.shape, one.step)
            values = (self.run.id, worker, one.term, time.time(), *about, one.planned, one.measured)
            self._facts.append((REPLACE_RESIDUAL, values))

    def listens_at(self, url: str) -> None:
        """Keep where the service answers."""
        self._facts.append(("UPDATE run SET url = ?2 WHERE number = ?1", (url,)))

    def close(self, exit_status: int) -> None:
        """Write what is left and that the run ended; gives up after five seconds of a disk that does not answer."""
        ended = (time.time(), exit_status)
        self._facts.append(("UPDATE run SET ended_unix_s = ?2, exit_status = ?3 WHERE number = ?1", ended))
        self._stop.set()
        self._thread.join(_CLOSE_S)

    def _work(self) -> None:
        is_written = self._write()
        while not self._stop.wait(_COMMIT_S if is_written else _RETRY_S):
            is_written = self._write()
        if self._write() and self._connection is not None:
            self._connection.close()

    def _write(self) -> bool:
        """One commit of all that is queued, and now and then the retention; whether that went well."""
        try:
            connection = self._opened()
            while self._write_batch(connection):
                pass
            self._trim(connection)
        except (sqlite3.Error, StoreUnusable, OSError) as error:
            self._failed(error)
            return False
        except Exception:  # a bug of ours costs the record, never the service, and is told
            _log.exception("the run store's writer failed")
            self._close()
            return False
        if self._warned:
            _log.warning("the run store %s is written again; %d requests were not recorded", self.path, self._num_lost)
            self._warned = False
        return True

    def _opened(self) -> sqlite3.Connection:
        """The connection; a new one where the file was replaced under it."""
        if self._connection is not None:
            with contextlib.suppress(FileNotFoundError):
                if self.path.stat().st_ino == self._inode:
                    return self._connection
            self._close()
        self._connection = connect(self.path, _BUSY_S)
        self._connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        self._inode = self.path.stat().st_ino
        return self._connection

    def _write_batch(self, connection: sqlite3.Connection) -> bool:
        """Whether there was a full batch, so that more may wait. What was not committed stays in the queues."""
        facts = [self._facts.popleft() for _ in range(len(self._facts))]
        rows = [self._requests.popleft() for _ in range(min(_BATCH, len(self._requests)))]
        is_due = time.monotonic() - self._beat_s > _SIGN_OF_LIFE_S or self._num_lost > self._num_lost_told
        if not facts and not rows and not is_due:
            return False
        try:
            connection.execute("BEGIN IMMEDIATE")
            self._insert(connection, facts, rows)
            connection.execute("COMMIT")
        except BaseException:
            self._facts.extendleft(reversed(facts))
            self._requests.extendleft(reversed(rows))
            raise
        self._next_number += len(rows)
        self._beat_s = time.monotonic()
        return len(rows) == _BATCH

    def _insert(
        self, connection: sqlite3.Connection, facts: list[tuple[str, tuple[Any, ...]]], rows: list[RequestRow]
    ) -> None:
        found = connection.execute("SELECT number FROM run WHERE id = ?", [self.run.id]).fetchone()
        number: int = found[0] if found else self._insert_run(connection, facts)
        for statement, values in facts:
            connection.execute(statement, (number, *values))
        if rows:
            listed = json.dumps([[self._label(connection, row.label), *row[1:]] for row in rows])
            connection.execute(INSERT_REQUESTS, (number, self._next_number, listed))
        num_errors = sum(row.label.error_code != "" for row in rows)
        connection.execute(COUNT, (number, len(rows), num_errors, self._num_lost, time.time()))
        self._num_lost_told = self._num_lost

    def _insert_run(self, connection: sqlite3.Connection, facts: list[tuple[str, tuple[Any, ...]]]) -> int:
        """Into a new store, with the plans that are known: the old one may have been set aside."""
        run, pid = self.run, os.getpid()
        added = connection.execute(
            INSERT_RUN,
            (
                run.id,
                self._started_unix_s,
                time.time(),
                here(),
                pid,
                start_of(pid),
                _text(run.command),
                _text(run.versions),
                _text(run.hardware),
                str(run.folder),
                run.started_by,
            ),
        )
        assert added.lastrowid is not None
        plans = list(self._plans)
        queued = [*facts, *self._facts.copy()]
        for statement, values in plans:
            if (statement, values) not in queued:
                connection.execute(statement, (added.lastrowid, *values))
        self._labels.clear()
        return added.lastrowid

    def _label(self, connection: sqlite3.Connection, label: RequestLabel) -> int:
        number = self._labels.get(label)
        if number is None:
            connection.execute(
                "INSERT OR IGNORE INTO request_label (method, route, model, worker, status, error_code, is_background,"
                " client_left) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                label,
            )
            (number,) = connection.execute(
                "SELECT number FROM request_label WHERE method = ? AND route = ? AND model = ? AND worker = ? "
                "AND status = ? AND error_code = ? AND is_background = ? AND client_left = ?",
                label,
            ).fetchone()
            self._labels[label] = number
        return number

    def _trim(self, connection: sqlite3.Connection) -> None:
        if time.monotonic() - self._trimmed_s > _TRIM_S:
            self._trimmed_s = time.monotonic()
            trim(connection, self._retention, self.path, self.run.id)

    def _failed(self, error: Exception) -> None:
        if not self._warned:
            reason = unusable(self.path, error) if isinstance(error, sqlite3.Error) else error
            _log.warning("%s. This run is not recorded until that is fixed; the service continues", reason)
        self._warned = True
        self._close()  # whatever was begun is rolled back; the next one may find the file mended or set it aside

    def _close(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            if self._connection is not None:
                self._connection.close()
        self._connection = None
        self._labels.clear()


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
