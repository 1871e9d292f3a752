"""The state folder: where qserve keeps runs, files and caches."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from qserve.errors import UsageError

if TYPE_CHECKING:
    from qserve.runs import RunStore

__all__ = ["existing_store", "run_store", "state_folder"]


def state_folder(state_dir: Path | None) -> Path:
    """--state-dir, else $QSERVE_STATE_DIR, else the user's state folder by the XDG Base Directory Specification."""
    home = os.environ.get("QSERVE_STATE_DIR") or os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return (state_dir or Path(home)) / "qserve"


def run_store(state_dir: Path | None) -> RunStore:
    """The existing run store. Raises UsageError if there is none."""
    store = existing_store(state_dir)
    if store is None:
        raise UsageError(
            f"no runs yet in {state_folder(state_dir)}; start one with `qserve up`, or name another folder: --state-dir"
        )
    return store


def existing_store(state_dir: Path | None) -> RunStore | None:
    """The run store; None if there is none yet."""
    from qserve.runs import RunStore

    return RunStore.open_existing(state_folder(state_dir))
