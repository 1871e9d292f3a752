"""What a worker wrote while it started: from where to where in its log, for a service that takes it over."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from pathlib import Path

from qserve.runs.private import open_private

__all__ = ["StartLog"]


class StartLog:
    """Of the last start.

    Attributes:
        file: the log.
        span: its first byte, and the one behind its last.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self.span = (0, 0)

    def begins(self) -> None:
        """A start begins: what comes is of it."""
        self.span = (self._size(), self._size())

    def ends(self) -> None:
        """The worker is ready."""
        self.span = (self.span[0], self._size())

    def copy_from(self, file: Path, span: tuple[int, int], hear: Callable[[str], object]) -> None:
        """Take the start out of another service's log, and `hear` its lines.

        Where it can't be read, figures of the start are missing and nothing else.
        """
        begin, end = span
        with contextlib.suppress(OSError), file.open("rb") as log:
            log.seek(begin)
            said = log.read(end - begin)
            with io.FileIO(self.file, "a", opener=open_private) as copy:
                copy.write(said)
            self.span = (0, self._size())
            for line in said.decode(errors="replace").splitlines():
                hear(line.strip())

    def _size(self) -> int:
        return self.file.stat().st_size if self.file.is_file() else 0
