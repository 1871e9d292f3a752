"""`RunStore`: reads the store and adds results to it."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from qserve.errors import UsageError
from qserve.planner.calibration import Residual
from qserve.runs.database import FILE_NAME, connect, unusable
from qserve.runs.key_usage import KeyUsage, usage_of, used_by_key
from qserve.runs.loads import MeasuredLoads, loads_of
from qserve.runs.records import (
    MemorySample,
    StoredDocument,
    StoredEvent,
    StoredRequest,
    StoredRun,
    StoredTraining,
    Traffic,
)
from qserve.runs.request_queries import RequestFilter, requests_of
from qserve.runs.residuals import residuals_in
from qserve.runs.retention import forget
from qserve.runs.stored_rows import RUN_COLUMNS, run_of, sample_of, state_of
from qserve.runs.traffic import traffic_of
from qserve.runs.trainings import REPLACE_TRAINING, listed

__all__ = ["RunStore"]


@dataclass(frozen=True)
class RunStore:
    """The runs of one state folder. Every method opens the file anew, so that any thread may call it.

    All of them raise StoreUnusable where the file can't be read or written.
    """

    path: Path

    @classmethod
    def open(cls, state_folder: Path) -> RunStore:
        """The store of `state_folder` (qserve/state_folder.py); made where there is none. Raises StoreUnusable."""
        store = cls(state_folder / FILE_NAME)
        with store.connection():
            return store

    @classmethod
    def open_existing(cls, state_folder: Path) -> RunStore | None:
        """The same; None where there is none: reading makes no file. Raises StoreUnusable."""
        return cls.open(state_folder) if (state_folder / FILE_NAME).exists() else None

    @contextlib.contextmanager
    def connection(self) -> Iterator[sqlite3.Connection]:
        """In one transaction of reading, so that everything read is of one moment."""
        try:
            with contextlib.closing(connect(self.path)) as connection:
                connection.execute("BEGIN")
                yield connection
                connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise unusable(self.path, error) from error

    def runs(self, limit: int | None = None) -> tuple[StoredRun, ...]:
        """Newest first."""
        with self.connection() as connection:
            rows = connection.execute(
                f"SELECT {RUN_COLUMNS} FROM run ORDER BY started_unix_s DESC, number DESC LIMIT ?",  # noqa: S608
                [-1 if limit is None else limit],
            ).fetchall()
            return tuple(run_of(connection, row) for row in rows)

    def run(self, name: str | None = None) -> StoredRun:
        """The run with this id or beginning of one. Raises UsageError where that is not one run.

        None: the newest, or rather the newest that `qserve compare` and `bench` did not start for themselves, where
        there is one.
        """
        with self.connection() as connection:
            return run_of(connection, self._row(connection, name))

    def find(self, name: str) -> StoredRun | None:
        """The run with exactly this id."""
        with self.connection() as connection:
            row = connection.execute(f"SELECT {RUN_COLUMNS} FROM run WHERE id = ?", [name]).fetchone()  # noqa: S608
            return None if row is None else run_of(connection, row)

    def memory(self, run: StoredRun) -> tuple[MemorySample, ...]:
        """In order of time."""
        rows = self._rows("SELECT unix_s, worker, moment, document FROM memory WHERE run = {} ORDER BY unix_s", run)
        return tuple(sample_of(*row) for row in rows)

    def events(self, run: StoredRun) -> tuple[StoredEvent, ...]:
        """In order of time."""
        rows = self._rows("SELECT unix_s, worker, event, details FROM event WHERE run = {} ORDER BY unix_s, rowid", run)
        return tuple(StoredEvent(unix_s, worker, event, json.loads(text)) for unix_s, worker, event, text in rows)

    def requests(
        self, run: StoredRun, *, limit: int = 1000, offset: int = 0, only_errors: bool = False, **chosen: Any
    ) -> tuple[StoredRequest, ...]:
        """Newest first. `chosen`: route, model, worker, since_unix_s, until_unix_s, as in `RequestFilter`."""
        with self._chosen(run, chosen, only_errors) as (connection, filtered):
            return requests_of(connection, filtered, limit, offset)

    def traffic(self, run: StoredRun, *, bucket_s: int = 60) -> Traffic:
        """All requests by worker: summary, series and histograms, in one sweep of two seconds a million."""
        with self.connection() as connection:
            return traffic_of(connection, self._row(connection, run.id)[0], bucket_s)

    def used_by_key(self, since_unix_s: float) -> dict[str, tuple[int, int, int]]:
        """Requests, prompt and generated tokens of each key with a name since then, of all runs."""
        with self.connection() as connection:
            return used_by_key(connection, since_unix_s)

    def usage(self, since_unix_s: float = 0.0, run: StoredRun | None = None) -> tuple[KeyUsage, ...]:
        """What keys with names used since then, of one run or of all, by day (UTC), key and model; newest day first."""
        with self.connection() as connection:
            return usage_of(connection, since_unix_s, _id(run))

    def residuals(self) -> tuple[Residual, ...]:
        """What every run measured beside what was planned for it, oldest first: for `PlanRequest.learned`."""
        with self.connection() as connection:
            return residuals_in(connection)

    def loads(self, engine: str, shape: str) -> MeasuredLoads | None:
        """How models of this plan's shape were loaded; None: none was."""
        with self.connection() as connection:
            return loads_of(connection, engine, shape)

    def evals(self, run: StoredRun | str | None = None) -> tuple[StoredDocument, ...]:
        """Evaluations of this run, in order of time; None: all there are."""
        return self._results("eval", run)

    def benches(self, run: StoredRun | str | None = None) -> tuple[StoredDocument, ...]:
        """Load tests, likewise."""
        return self._results("bench", run)

    def comparisons(self, run: StoredRun | str | None = None) -> tuple[StoredDocument, ...]:
        """Comparisons of quantizations, likewise."""
        return self._results("comparison", run)

    def trainings(self, run: StoredRun | str | None = None) -> tuple[StoredDocument, ...]:
        """What training runs came to, likewise."""
        return self._results("train", run)

    def training_list(self) -> tuple[StoredTraining, ...]:
        """The newest training runs, without what they came to: cheap enough to be asked for every two seconds."""
        with self.connection() as connection:
            rows: list[Any] = listed(connection)
        return tuple(
            StoredTraining(
                name, document or "", state_of(ended, seen, host, pid, start), exit_status, began, at or began
            )
            for name, began, seen, ended, exit_status, host, pid, start, document, at in rows
        )

    def keep_training(self, document: Mapping[str, Any], *, name: str, run: StoredRun | str) -> None:
        """Keep what a training run came to, in place of what was kept of it while it went on."""
        text = json.dumps(document, ensure_ascii=False)
        with self.connection() as connection:
            connection.execute(REPLACE_TRAINING, [1, _id(run), time.time(), name, text])

    def add_eval(
        self, document: Mapping[str, Any], *, name: str = "", run: StoredRun | str | None = None
    ) -> StoredDocument:
        """Keep an evaluation's result."""
        return self._add("eval", document, name, run)

    def add_bench(
        self, document: Mapping[str, Any], *, name: str = "", run: StoredRun | str | None = None
    ) -> StoredDocument:
        """Keep a load test's result."""
        return self._add("bench", document, name, run)

    def add_comparison(
        self, document: Mapping[str, Any], *, name: str = "", run: StoredRun | str | None = None
    ) -> StoredDocument:
        """Keep a comparison's result."""
        return self._add("comparison", document, name, run)

    def delete(self, runs: Iterable[StoredRun]) -> tuple[str, ...]:
        """Forget these runs, their results, residuals and logs; the ids. Raises UsageError for one that is running."""
        chosen = tuple({run.id: run for run in runs}.values())
        for run in chosen:
            if run.state == "running":
                raise UsageError(f"{run.id} is running; stop it first, then delete it")
        try:
            with contextlib.closing(connect(self.path)) as connection:
                for run in chosen:
                    forget(connection, self.path, run.id)
                connection.execute("PRAGMA incremental_vacuum").fetchall()
        except sqlite3.Error as error:
            raise unusable(self.path, error) from error
        return tuple(run.id for run in chosen)

    def _add(
        self,
        kind: Literal["eval", "bench", "comparison"],
        document: Mapping[str, Any],
        name: str,
        run: StoredRun | str | None,
    ) -> StoredDocument:
        text = json.dumps(document, ensure_ascii=False)
        run_id, unix_s = _id(run), time.time()
        with self.connection() as connection:
            added = connection.execute(
                "INSERT INTO result (kind, unix_s, run_id, name, document) VALUES (?, ?, ?, ?, ?)",
                [kind, unix_s, run_id, name, text],
            )
            number = added.lastrowid or 0
        return StoredDocument(number, kind, unix_s, run_id, name, json.loads(text))

    def _results(
        self, kind: Literal["eval", "bench", "comparison", "train"], run: StoredRun | str | None
    ) -> tuple[StoredDocument, ...]:
        with self.connection() as connection:
            rows = connection.execute(
                "SELECT number, unix_s, run_id, name, document FROM result "
                "WHERE kind = ? AND (run_id = ? OR ? IS NULL) ORDER BY unix_s, number",
                [kind, _id(run), _id(run)],
            ).fetchall()
        return tuple(
            StoredDocument(number, kind, unix_s, run_id, name, json.loads(text))
            for number, unix_s, run_id, name, text in rows
        )

    def _rows(self, query: str, run: StoredRun) -> list[Any]:
        with self.connection() as connection:
            return connection.execute(query.format("(SELECT number FROM run WHERE id = ?)"), [run.id]).fetchall()

    @contextlib.contextmanager
    def _chosen(
        self, run: StoredRun, chosen: Mapping[str, Any], only_errors: bool = False
    ) -> Iterator[tuple[sqlite3.Connection, RequestFilter]]:
        with self.connection() as connection:
            number = self._row(connection, run.id)[0]
            yield connection, RequestFilter(number, only_errors=only_errors, **chosen)

    def _row(self, connection: sqlite3.Connection, name: str | None) -> Any:
        rows = connection.execute(
            f"SELECT {RUN_COLUMNS} FROM run WHERE substr(id, 1, length(?1)) = ?1 "  # noqa: S608
            "ORDER BY id = ?1 DESC, ?1 = '' AND started_by IN ('bench', 'compare'), started_unix_s DESC, number DESC "
            "LIMIT 3",
            [name or ""],
        ).fetchall()
        if not rows and name:
            raise UsageError(f"no run's id begins with {name[:100]!r}; `qserve runs` lists them")
        if not rows:
            raise UsageError(f"no runs yet in {self.path.parent}; start one with `qserve up`")
        if name and rows[0][1] != name and len(rows) > 1:
            raise UsageError(
                f"several runs' ids begin with {name!r}: {', '.join(row[1] for row in rows)}; write more of the id"
            )
        return rows[0]


def _id(run: StoredRun | str | None) -> str | None:
    return run.id if isinstance(run, StoredRun) else run
