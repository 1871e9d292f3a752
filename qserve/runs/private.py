"""Folders and files that only their user can read."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

__all__ = ["make_private", "open_private"]

_FOLDER, _FILE = 0o700, 0o600


def make_private(folder: Path) -> None:
    """Make `folder` and what it lies in; one that is there already, and ours, is closed to others. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True, mode=_FOLDER)
    about = folder.stat()
    if about.st_uid == os.getuid() and about.st_mode & 0o077:
        with contextlib.suppress(OSError):  # a file system without modes
            folder.chmod(_FOLDER)


def open_private(name: str, flags: int) -> int:
    """An `opener` for files that only their user can read; also one that was there before."""
    descriptor = os.open(name, flags, _FILE)
    with contextlib.suppress(OSError):
        os.fchmod(descriptor, _FILE)
    return descriptor
