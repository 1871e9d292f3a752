"""The state folder: where qserve keeps runs, files and caches."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from qserve.errors import UsageError

if TYPE_CHECKING:
    from qserve.runs import RunStore

__all__ = ["run_store", "state_folder"]


def state_folder(state_dir: Path | None) -> Path:
    """--state-dir, else the user's state folder by the XDG Base Directory Specification."""
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return (state_dir or Path(home)) / "qserve"


def run_store(state_dir: Path | None) -> RunStore:
    """The existing run store. Raises UsageError if there is none: reading creates no file."""
    from qserve.runs import RunStore
    from qserve.runs.database import FILE_NAME

    folder = state_folder(state_dir)
    if not (folder / FILE_NAME).exists():
        raise UsageError(f"no run is stored in {folder}; start one with `qserve up`, or name the place: --state-dir")
    return RunStore.open(folder)
