"""The results of one batch, appended as they arrive.

A record is one line, written in one go when its answer is there. So the files themselves say which lines are answered:
a process that goes on after another was killed cuts off a record that was not written to its end, and asks the rest.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from qserve.batches.files import FileStore
from qserve.batches.records import StoredBatch
from qserve.runs.private import make_private, open_private

__all__ = ["Results"]


class _Answered(msgspec.Struct):
    """What is read of a record that was written before."""

    custom_id: str


class _Records:
    """One file of records; `part` until the batch has ended, then `final`."""

    def __init__(self, part: Path, final: Path) -> None:
        self._part = part
        self._final = final
        self._fd = -1

    def open(self) -> set[str]:
        """The ids of the lines that are answered in it."""
        if not self._part.exists() and self._final.exists():  # killed between the two steps of `finish`
            self._final.replace(self._part)
        self._fd = open_private(str(self._part), os.O_CREAT | os.O_RDWR)
        answered, num_whole = set(), 0
        with self._part.open("rb") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    break
                num_whole += len(line)
                answered.add(msgspec.json.decode(line, type=_Answered).custom_id)
        os.ftruncate(self._fd, num_whole)
        os.lseek(self._fd, 0, os.SEEK_END)
        return answered

    def append(self, record: Mapping[str, Any]) -> None:
        line = memoryview(msgspec.json.encode(record) + b"\n")
        while line:  # a disk that is full takes a part, and then raises
            line = line[os.write(self._fd, line) :]

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def finish(self) -> int:
        """On disk under its last name; bytes, 0 where there is none."""
        os.fsync(self._fd)
        num_bytes = os.fstat(self._fd).st_size
        self.close()
        make_private(self._final.parent)
        if num_bytes:
            self._part.replace(self._final)
        else:
            self._part.unlink()
        return num_bytes


class Results:
    """Output and errors of one batch. `open` may take a while: call it, and `finish`, in a thread."""

    def __init__(self, files: FileStore, batch: StoredBatch) -> None:
        self._batch = batch
        make_private(files.part_path("").parent)
        self._output = _Records(files.part_path(f"{batch.id}.output"), files.path(batch.output_file_id))
        self._errors = _Records(files.part_path(f"{batch.id}.errors"), files.path(batch.error_file_id))
        self.answered: set[str] = set()
        self.num_completed = 0
        self.num_failed = 0

    def open(self) -> None:
        """Find what is answered already."""
        completed, failed = self._output.open(), self._errors.open()
        self.answered = completed | failed
        self.num_completed, self.num_failed = len(completed), len(failed)

    def add(self, custom_id: str, status: int, request_id: str, body: bytes) -> None:
        """An answer, a refusal among them. Raises OSError where the disk is full."""
        response = {"status_code": status, "request_id": request_id, "body": _on_one_line(body)}
        self._append(custom_id, response, None, is_failed=status >= 400)

    def add_unsent(self, custom_id: str, code: str, message: str) -> None:
        """A line that nobody answers."""
        self._append(custom_id, None, {"code": code, "message": message}, is_failed=True)

    def close(self) -> None:
        """As it is: another process may go on."""
        self._output.close()
        self._errors.close()

    def finish(self) -> dict[str, int]:
        """The files that came of it: ids to bytes."""
        sizes = {self._batch.output_file_id: self._output.finish(), self._batch.error_file_id: self._errors.finish()}
        return {file_id: num_bytes for file_id, num_bytes in sizes.items() if num_bytes}

    def _append(self, custom_id: str, response: Any, error: Any, *, is_failed: bool) -> None:
        record = {"id": f"batch_req_{uuid.uuid4().hex}", "custom_id": custom_id, "response": response, "error": error}
        (self._errors if is_failed else self._output).append(record)
        self.answered.add(custom_id)
        self.num_failed += is_failed
        self.num_completed += not is_failed


def _on_one_line(body: bytes) -> Any:
    if b"\n" not in body and b"\r" not in body:
        return msgspec.Raw(body)
    with suppress(msgspec.DecodeError):
        return msgspec.json.decode(body)
    return body.decode(errors="replace")
