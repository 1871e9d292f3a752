"""The service's API keys: reads them, and hides them from process lists and workers.

Workers have internal keys of their own (`qserve.worker.base.WorkerFacts`) and never learn these.
"""

from __future__ import annotations

import ctypes
import logging
import os
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path

from qserve.errors import UsageError

__all__ = ["VARIABLE", "keys_in_use", "keys_of_file"]

VARIABLE = "QSERVE_API_KEY"
_log = logging.getLogger("qserve.supervisor")
# proc(5), counted after the name in parentheses: arg_start and arg_end are fields 48 and 49.
_ARG_START, _ARG_END = 45, 46


def keys_in_use(given: Sequence[str], files: Iterable[Path]) -> tuple[str, ...]:
    """The keys of --api-key or its variable, and of --api-key-file; hides them from process lists."""
    keys = (*given, *(key for file in files for key in keys_of_file(file)))
    os.environ.pop(VARIABLE, None)
    _hide_in_arguments(given)
    return tuple(dict.fromkeys(keys))


def keys_of_file(file: Path, flag: str = "--api-key-file") -> tuple[str, ...]:
    """One key per line, without empty lines and # comments. Raises UsageError if there is none."""
    try:
        text = file.read_text()
        mode = file.stat().st_mode
    except OSError as error:
        raise UsageError(f"{flag} {file} can't be read: {error.strerror}") from error
    except UnicodeDecodeError:
        raise UsageError(f"{flag} {file} is not text; write one key on each line") from None
    lines = (line.strip() for line in text.splitlines())
    keys = tuple(line for line in lines if line and not line.startswith("#"))
    if not keys:
        raise UsageError(f"{flag} {file} has no key; write one on each line, for example from `openssl rand -hex 24`")
    if mode & stat.S_IROTH:
        _log.warning("%s can be read by every user of this machine; chmod 600 it", file)
    return keys


def _hide_in_arguments(keys: Sequence[str]) -> None:
    """Overwrite the keys in this process's arguments, which any user can read (Linux only)."""
    area = _argument_area()
    if area is None:
        return
    start, size = area
    shown = ctypes.string_at(start, size)
    for key in (key.encode() for key in keys if key):
        for word in (key, b"--api-key=" + key):
            at = shown.find(b"\0" + word + b"\0")
            while at >= 0:
                ctypes.memset(start + at + 1 + len(word) - len(key), ord("*"), len(key))
                at = shown.find(b"\0" + word + b"\0", at + 1)


def _argument_area() -> tuple[int, int] | None:
    """Where this process's arguments stand in its memory, and how long they are."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        start, end = int(fields[_ARG_START]), int(fields[_ARG_END])
    except (OSError, ValueError, IndexError):
        return None
    return (start, end - start) if start and end > start else None
