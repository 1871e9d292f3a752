"""Whether results can be written, asked before the work that makes them."""

from __future__ import annotations

import tempfile
from pathlib import Path

from qserve.errors import UsageError

__all__ = ["check_file_writable", "check_folder_writable"]


def check_file_writable(file: Path) -> None:
    """Makes its folder where it is missing. Raises UsageError."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        is_new = not file.exists()
        with file.open("a"):
            pass
        if is_new:
            file.unlink()
    except OSError as error:
        raise UsageError(f"{file} can't be written: {error.strerror}") from error


def check_folder_writable(folder: Path) -> None:
    """Makes it where it is missing. Raises UsageError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UsageError(f"{folder} can't be written: {error.strerror}") from error
