"""Limits on files and batches. Each default exists once, here."""

from __future__ import annotations

from dataclasses import dataclass

from qserve.units import GIB, MIB

__all__ = ["FileBounds"]

_DAY_S = 24 * 3600


@dataclass(frozen=True)
class FileBounds:
    """Bounds of one state folder.

    Attributes:
        max_file_bytes: of one file; OpenAI takes 200 MB for a batch.
        max_total_bytes: of all files together, what is being written among it, each at least a block of a disk; an
            upload beyond it is refused, and batches ask no further line.
        max_files_of_key, max_files: an upload beyond either number is refused; results of batches count, and are kept.
        keep_s: files, and batches that have ended, are forgotten after so many seconds.
        max_lines: of one batch, as OpenAI has it.
        max_unfinished: batches of one key that have not ended.
    """

    max_file_bytes: int = 200 * MIB
    max_total_bytes: int = 10 * GIB
    max_files_of_key: int = 1000
    max_files: int = 10_000
    keep_s: int = 30 * _DAY_S
    max_lines: int = 50_000
    max_unfinished: int = 100
