"""Rows of batches in the database, and the lock of the process that runs one."""

from __future__ import annotations

import fcntl
import json
import os
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

from qserve.batches.files import FileStore, Page, insert_file, new_file_id
from qserve.batches.records import ENDED, LineError, StoredBatch, StoredFile
from qserve.runs.private import make_private
from qserve.wire.errors import ApiError

__all__ = ["BatchStore"]

_COLUMNS = (
    "id, owner, endpoint, input_file_id, completion_window, status, created_at, expires_at, output_file_id, "
    "error_file_id, served, model, num_total, num_completed, num_failed, output_keep_s, times, metadata, errors"
)
_ENDED = ", ".join(f"'{one}'" for one in sorted(ENDED))


class BatchStore:
    """Every method may wait for the disk: call it in a thread. Raises ApiError for what a client did, FilesUnusable."""

    def __init__(self, files: FileStore) -> None:
        self.files = files
        self._database = files.database

    def create(
        self,
        owner: str,
        endpoint: str,
        input_file_id: str,
        window: tuple[str, int],
        served: Sequence[str],
        metadata: Mapping[str, str] | None,
        output_keep_s: int | None,
    ) -> StoredBatch:
        """A batch that waits to be checked. `window`: as it was said, and in seconds.

        404 where `owner` has no such file, 429 where too many of its batches have not ended.
        """
        self.files.get(input_file_id, owner)
        now = int(time.time())
        batch = StoredBatch(
            f"batch_{uuid.uuid4().hex}",
            owner,
            endpoint,
            input_file_id,
            window[0],
            "validating",
            now,
            now + window[1],
            new_file_id(),
            new_file_id(),
            tuple(served),
            metadata=metadata,
            output_keep_s=output_keep_s,
        )
        with self._database.transaction() as ask:
            (count,) = ask(
                f"SELECT COUNT(*) AS n FROM batch WHERE owner = ? AND status NOT IN ({_ENDED})",  # noqa: S608
                (owner,),
            )
            if count["n"] >= self.files.bounds.max_unfinished:
                message = f"{count['n']} batches of this key have not ended; wait for one, or cancel it"
                raise ApiError(429, message, "too_many_batches", retry_after_s=60)
            values = _values(batch)
            ask(f"INSERT INTO batch ({_COLUMNS}) VALUES ({', '.join('?' * len(values))})", values)  # noqa: S608
        return batch

    def get(self, batch_id: str, owner: str | None = None) -> StoredBatch:
        """404 where there is none, or not of `owner`; None: whoever's."""
        rows = self._database.ask(f"SELECT {_COLUMNS} FROM batch WHERE id = ?", (batch_id,))  # noqa: S608
        if not rows or (owner is not None and rows[0]["owner"] != owner):
            raise ApiError(404, f"there is no batch {batch_id[:100]!r} of this key", "batch_not_found")
        return _batch(rows[0])

    def listed(self, owner: str, page: Page) -> tuple[Sequence[StoredBatch], bool]:
        """Batches of `owner`, and whether there are more."""
        rows, has_more = page.rows_of(self._database, "batch", _COLUMNS, owner)
        return [_batch(row) for row in rows], has_more

    def unfinished(self) -> list[StoredBatch]:
        """Batches of anybody that have not ended, the oldest first; none where nothing was ever kept here."""
        if not self._database.exists():
            return []
        statement = f"SELECT {_COLUMNS} FROM batch WHERE status NOT IN ({_ENDED}) ORDER BY seq"  # noqa: S608
        return [_batch(row) for row in self._database.ask(statement)]

    def cancel(self, batch_id: str, owner: str) -> StoredBatch:
        """Who runs it ends it within a second. 409 where it has ended."""
        batch = self.get(batch_id, owner)
        if batch.has_ended:
            raise ApiError(409, f"{batch_id} is {batch.status} already", "batch_has_ended")
        return self.move(batch_id, "cancelling")

    def move(self, batch_id: str, status: str, **changes: Any) -> StoredBatch:
        """The batch in its next status, with its time; one that has ended or is being cancelled stays as it is."""
        with self._database.transaction() as ask:
            batch = _row(ask, batch_id)
            if batch.has_ended or batch.status == "cancelling":
                return batch
            return _updated(ask, batch, status, **changes)

    def count(self, batch_id: str, num_completed: int, num_failed: int) -> StoredBatch:
        """Keep how far it is; the batch as it is now."""
        with self._database.transaction() as ask:
            ask(
                "UPDATE batch SET num_completed = ?, num_failed = ? WHERE id = ?", (num_completed, num_failed, batch_id)
            )
            return _row(ask, batch_id)

    def fail(self, batch_id: str, errors: Sequence[LineError], num_total: int = 0) -> StoredBatch:
        """Its input can't be run."""
        return self.move(batch_id, "failed", errors=tuple(errors), num_total=num_total)

    def finish(self, batch_id: str, status: str, counts: tuple[int, int], files: Mapping[str, int]) -> StoredBatch:
        """The batch ends as `status` with so many answers and failures, and `files` (ids to bytes) become its results.

        One that was cancelled at the last moment is cancelled. All of it or nothing.
        """
        now = int(time.time())
        with self._database.transaction() as ask:
            batch = _row(ask, batch_id)
            names = {batch.output_file_id: f"{batch.id}_output.jsonl", batch.error_file_id: f"{batch.id}_error.jsonl"}
            keep_s = min(batch.output_keep_s or self.files.bounds.keep_s, self.files.bounds.keep_s)
            for file_id, num_bytes in files.items():
                name = names[file_id]
                insert_file(ask, StoredFile(file_id, batch.owner, name, "batch_output", num_bytes, now, now + keep_s))
            status = "cancelled" if batch.status == "cancelling" else status
            return _updated(ask, batch, status, num_completed=counts[0], num_failed=counts[1])

    @contextmanager
    def claimed(self, batch_id: str) -> Iterator[bool]:
        """Whether this process may run the batch now: the kernel gives its lock to one, and takes it from the dead."""
        path = self.files.part_path(f"{batch_id}.lock")
        make_private(path.parent)
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            # Who had it before may have ended the batch and removed the file that this lock is on.
            yield not self.get(batch_id).has_ended
            if self.get(batch_id).has_ended:
                path.unlink(missing_ok=True)
        finally:
            os.close(descriptor)


def _values(batch: StoredBatch) -> tuple[Any, ...]:
    fields = asdict(batch)
    for name in ("served", "times", "errors"):
        fields[name] = json.dumps(fields[name])
    fields["metadata"] = None if batch.metadata is None else json.dumps(fields["metadata"])
    return tuple(fields[name] for name in _COLUMNS.split(", "))


def _batch(row: Mapping[str, Any]) -> StoredBatch:
    errors = tuple(LineError(**one) for one in json.loads(row["errors"]))
    metadata = None if row["metadata"] is None else json.loads(row["metadata"])
    read = {"served": tuple(json.loads(row["served"])), "times": json.loads(row["times"])}
    return StoredBatch(**{**row, **read, "errors": errors, "metadata": metadata})


def _row(ask: Any, batch_id: str) -> StoredBatch:
    (row,) = ask(f"SELECT {_COLUMNS} FROM batch WHERE id = ?", (batch_id,))  # noqa: S608
    return _batch(row)


def _updated(ask: Any, batch: StoredBatch, status: str, **changes: Any) -> StoredBatch:
    moved = replace(batch, status=status, times={**batch.times, f"{status}_at": int(time.time())}, **changes)
    sets = ", ".join(f"{name} = ?" for name in _COLUMNS.split(", "))
    ask(f"UPDATE batch SET {sets} WHERE id = ?", (*_values(moved), batch.id))  # noqa: S608
    return moved
