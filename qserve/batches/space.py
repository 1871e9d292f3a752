"""What files may take together: counted as they come, however many come at once and in however many processes."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from qserve.batches.bounds import FileBounds
from qserve.batches.database import Database
from qserve.units import format_bytes
from qserve.wire.errors import ApiError

__all__ = ["Incoming", "Space"]

_BLOCK_BYTES = 4096
"""What the smallest file takes of a disk."""
_CHARGED = f"COALESCE(SUM(MAX((num_bytes + {_BLOCK_BYTES - 1}) / {_BLOCK_BYTES}, 1) * {_BLOCK_BYTES}), 0)"
_HINT = "delete some (DELETE /v1/files/{file_id})"

Ask = Callable[..., Any]


class Space:
    """Of one folder. What is being written is as long as what was reserved for it: all processes see that."""

    def __init__(self, incoming: Path, database: Database, bounds: FileBounds) -> None:
        self._incoming = incoming
        self._database = database
        self._bounds = bounds

    def is_full(self) -> bool:
        """Whether what is kept, with what is being written, has reached the bound."""
        with self._database.transaction() as ask:
            return self._held(ask) >= self._bounds.max_total_bytes

    def check_count(self, ask: Ask, owner: str) -> None:
        """Raises ApiError 400 where `owner`, or all together, have as many files as may be."""
        (found,) = ask("SELECT COUNT(*) AS num, COALESCE(SUM(owner = ?), 0) AS own FROM file", (owner,))
        of_key, of_all = self._bounds.max_files_of_key, self._bounds.max_files
        if found["own"] >= of_key:
            raise ApiError(
                400, f"this key has {found['own']} files, and the limit is {of_key}: {_HINT}", "too_many_files"
            )
        if found["num"] >= of_all:
            message = f"all keys together have {found['num']} files, and the limit is {of_all}: {_HINT}"
            raise ApiError(400, message, "too_many_files")

    def reserve(self, sink: BinaryIO, num_bytes: int) -> None:
        """Make the new file behind `sink` so long; ApiError 400 where there is no space for that."""
        with self._database.transaction() as ask:  # one at a time, in all processes
            own = os.fstat(sink.fileno()).st_size
            held = self._held(ask) - _charged(own)
            if held + _charged(num_bytes) > self._bounds.max_total_bytes:
                raise ApiError(
                    400,
                    f"the stored files take {format_bytes(held)}, and the limit is "
                    f"{format_bytes(self._bounds.max_total_bytes)}: {_HINT}, or start with a larger --keep-files-gib",
                    "storage_full",
                )
            os.ftruncate(sink.fileno(), max(own, num_bytes))

    def _held(self, ask: Ask) -> int:
        (kept,) = ask(f"SELECT {_CHARGED} AS num_bytes FROM file")  # noqa: S608
        total = int(kept["num_bytes"])
        with suppress(FileNotFoundError), os.scandir(self._incoming) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    total += _charged(entry.stat().st_size)
        return total


class Incoming:
    """An upload that is being written. `reserve` and `finish` may wait for the disk: call them in a thread."""

    def __init__(self, path: Path, sink: BinaryIO, space: Space) -> None:
        self.path = path
        self.sink = sink
        self._space = space
        self.num_reserved = 0

    def reserve(self, num_bytes: int) -> None:
        """Before more than `num_reserved` bytes are written. Raises ApiError 400 where there is no space for them."""
        self._space.reserve(self.sink, num_bytes)
        self.num_reserved = num_bytes

    def finish(self, num_bytes: int) -> None:
        """All is written: what was reserved beyond it is given back."""
        self.sink.truncate(num_bytes)
        self.sink.close()

    def discard(self) -> None:
        """Nothing stays of it, unless it has become a file."""
        with suppress(OSError):
            self.sink.close()
        with suppress(OSError):
            self.path.unlink(missing_ok=True)


def _charged(num_bytes: int) -> int:
    return max(-(-num_bytes // _BLOCK_BYTES), 1) * _BLOCK_BYTES
