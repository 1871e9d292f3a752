"""Reads what was appended to a log since the last time."""

from __future__ import annotations

from pathlib import Path

__all__ = ["LogTail"]

_MOST_BYTES = 256 * 1024


class LogTail:
    """Reads on where it stopped, at most 256 KiB at a time; a log that does not exist yet is empty."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._offset = 0

    def read(self) -> bytes:
        """The next piece; b"" where nothing was written."""
        try:
            with self.file.open("rb") as log:
                log.seek(self._offset)
                piece = log.read(_MOST_BYTES)
        except OSError:
            return b""
        self._offset += len(piece)
        return piece
