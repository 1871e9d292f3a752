"""Uploaded files of one state folder: contents in a private folder, and a row each with its owner."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from qserve.batches.bounds import FileBounds
from qserve.batches.database import Database
from qserve.batches.records import ENDED, StoredFile
from qserve.batches.space import Incoming, Space
from qserve.runs.private import make_private, open_private
from qserve.wire.errors import ApiError

__all__ = ["FileStore", "Page", "new_file_id"]

# What a killed process left: nobody writes into it any more.
_ABANDONED_S = 24 * 3600
_COLUMNS = "id, owner, filename, purpose, num_bytes, created_at, expires_at"
_ENDED = ", ".join(f"'{one}'" for one in sorted(ENDED))


class Page:
    """What is asked of a list: `limit` entries behind the entry `after`, the newest first unless `order` is asc."""

    def __init__(self, limit: int, after: str | None = None, order: str = "desc", purpose: str | None = None) -> None:
        self.limit = limit
        self.after = after
        self.order = order
        self.purpose = purpose

    def rows_of(self, database: Database, table: str, columns: str, owner: str) -> tuple[list[dict[str, Any]], bool]:
        """The rows of `owner`, and whether there are more. 404 where `after` is none of them."""
        where, values = ["owner = ?"], [owner]
        if self.after is not None:
            (found,) = database.ask(f"SELECT seq FROM {table} WHERE id = ? AND owner = ?", (self.after, owner)) or [{}]  # noqa: S608
            if not found:
                raise ApiError(404, f"'after' names {self.after[:100]!r}, which does not exist", "not_found", "after")
            where.append(f"seq {'>' if self.order == 'asc' else '<'} ?")
            values.append(found["seq"])
        if self.purpose is not None:
            where.append("purpose = ?")
            values.append(self.purpose)
        order = "ASC" if self.order == "asc" else "DESC"
        statement = f"SELECT {columns} FROM {table} WHERE {' AND '.join(where)} ORDER BY seq {order} LIMIT ?"  # noqa: S608
        rows = database.ask(statement, (*values, self.limit + 1))
        return rows[: self.limit], len(rows) > self.limit


class FileStore:
    """Every method may wait for the disk: call it in a thread. Raises ApiError for what a client did, FilesUnusable."""

    def __init__(self, folder: Path, bounds: FileBounds) -> None:
        self.folder = folder
        self.bounds = bounds
        self.database = Database(folder / "files.sqlite3")
        self.space = Space(folder / "incoming", self.database, bounds)

    def path(self, file_id: str) -> Path:
        """Where the bytes of a file lie."""
        return self.folder / "content" / file_id

    def part_path(self, name: str) -> Path:
        """Where something lies that is not complete: an upload, the results of a batch that runs."""
        return self.folder / "incoming" / name

    def begin(self, owner: str, num_bytes: int) -> Incoming:
        """An upload of at most `num_bytes`; 0: not known. Raises ApiError 400 where there is no space for it."""
        self._make_folders()
        with self.database.transaction() as ask:
            self.space.check_count(ask, owner)
        path = self.part_path(uuid.uuid4().hex)
        incoming = Incoming(path, self.opened(path), self.space)
        try:
            incoming.reserve(num_bytes)
        except BaseException:
            incoming.discard()
            raise
        return incoming

    def opened(self, path: Path) -> BinaryIO:
        """A new file below this folder, which only its user can read."""
        return open(path, "wb", opener=open_private)

    def add(self, part: Path, owner: str, filename: str, purpose: str, keep_s: int | None) -> StoredFile:
        """What was written to `part` becomes a file. Raises ApiError 400 where there are too many."""
        now = int(time.time())
        num_bytes = part.stat().st_size
        expires_at = now + min(keep_s or self.bounds.keep_s, self.bounds.keep_s)
        file = StoredFile(new_file_id(), owner, filename, purpose, num_bytes, now, expires_at)
        with self.database.transaction() as ask:
            self.space.check_count(ask, owner)  # others may have come meanwhile
            insert_file(ask, file)
            part.replace(self.path(file.id))  # within: at any time one of the two is counted
        return file

    def get(self, file_id: str, owner: str) -> StoredFile:
        """404 where `owner` has no such file."""
        rows = self.database.ask(f"SELECT {_COLUMNS} FROM file WHERE id = ? AND owner = ?", (file_id, owner))  # noqa: S608
        if not rows:
            raise ApiError(404, f"there is no file {file_id[:100]!r} of this key", "file_not_found")
        return StoredFile(**rows[0])

    def listed(self, owner: str, page: Page) -> tuple[Sequence[StoredFile], bool]:
        """Files of `owner`, and whether there are more."""
        rows, has_more = page.rows_of(self.database, "file", _COLUMNS, owner)
        return [StoredFile(**row) for row in rows], has_more

    def delete(self, file_id: str, owner: str) -> None:
        """404 where there is no such file, 409 where a batch reads it."""
        self.get(file_id, owner)
        with self.database.transaction() as ask:
            using = ask(
                f"SELECT id FROM batch WHERE input_file_id = ? AND status NOT IN ({_ENDED})",  # noqa: S608
                (file_id,),
            )
            if using:
                raise ApiError(409, f"{using[0]['id']} reads this file; cancel it first", "file_in_use")
            ask("DELETE FROM file WHERE id = ?", (file_id,))
        self.path(file_id).unlink(missing_ok=True)

    def sweep(self) -> None:
        """Forget what is too old, and remove what nobody will finish."""
        now = int(time.time())
        with self.database.transaction() as ask:
            reading = f"SELECT input_file_id FROM batch WHERE status NOT IN ({_ENDED})"  # noqa: S608
            old = ask(f"DELETE FROM file WHERE expires_at < ? AND id NOT IN ({reading}) RETURNING id", (now,))  # noqa: S608
            ask(
                f"DELETE FROM batch WHERE status IN ({_ENDED}) AND expires_at + ? < ? AND created_at + ? < ?",  # noqa: S608
                (self.bounds.keep_s, now, self.bounds.keep_s, now),
            )
            known = {row["id"] for row in ask("SELECT id FROM file")}
            unfinished = {row["id"] for row in ask(f"SELECT id FROM batch WHERE status NOT IN ({_ENDED})")}  # noqa: S608
        for row in old:
            self.path(row["id"]).unlink(missing_ok=True)
        self._remove_abandoned(self.folder / "content", known)
        self._remove_abandoned(self.folder / "incoming", unfinished)

    def _remove_abandoned(self, folder: Path, known: set[str]) -> None:
        """Files older than a day whose name, up to its first dot, nobody knows."""
        with suppress(FileNotFoundError):
            for path in folder.iterdir():
                with suppress(FileNotFoundError):
                    is_old = time.time() - path.stat().st_mtime > _ABANDONED_S
                    if is_old and path.name.partition(".")[0] not in known:
                        path.unlink()

    def _make_folders(self) -> None:
        for name in ("content", "incoming"):
            make_private(self.folder / name)


def insert_file(ask: Any, file: StoredFile) -> None:
    """Inside a transaction; a row of the same id is replaced."""
    values = (file.id, file.owner, file.filename, file.purpose, file.num_bytes, file.created_at, file.expires_at)
    ask(f"INSERT OR REPLACE INTO file ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)", values)  # noqa: S608


def new_file_id() -> str:
    """Not to be guessed."""
    return f"file-{uuid.uuid4().hex}"
