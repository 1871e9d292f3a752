"""What ended a run, as facts: the kinds that a user can act on. Anything else keeps its traceback."""

from __future__ import annotations

import errno
from typing import Any

from qserve.errors import QserveError
from qserve.training.data.prepare import source_of
from qserve.training.job import TrainingRun

__all__ = ["failure_of"]

_OUT_OF_MEMORY = ("can't allocate memory", "out of memory", "cannot allocate memory", "enforce fail at alloc_cpu")
_DISK_FULL = ("no space left on device", "disk quota exceeded", "file too large")


def failure_of(error: BaseException, run: TrainingRun) -> dict[str, Any] | None:
    """`{"kind", "reason", …}`; None for what is nobody's mistake but a bug's."""
    from qserve.training.process.recorded import LossNotFinite

    if isinstance(error, LossNotFinite):
        sources = [source_of(run.data_folder, row) for row in error.rows]
        where = ", ".join(sources) or "rows that are packed together"
        return {
            "kind": "nan",
            "reason": f"{error}; its batch holds {where}. Lower --learning-rate, or look at these rows; the last "
            "checkpoint is from before it",
            "step": error.step,
            "sources": sources,
        }
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, MemoryError) or _says(error, _OUT_OF_MEMORY):
        return {"kind": "memory", "reason": _first_line(text)}
    if (isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)) or _says(
        error, _DISK_FULL
    ):
        return {
            "kind": "disk",
            "reason": f"the disk is full ({_first_line(text)}); complete checkpoints are kept: free some "
            "space and run the same command with --resume",
        }
    if isinstance(error, QserveError | ValueError | OSError):
        return {"kind": "input", "reason": _first_line(text)}
    return None


def _says(error: BaseException, phrases: tuple[str, ...]) -> bool:
    text = str(error).lower()
    return any(phrase in text for phrase in phrases)


def _first_line(text: str) -> str:
    return " ".join(text.split())[:600]
