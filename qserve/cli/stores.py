"""The run store that a command reads."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from qserve.errors import UsageError
from qserve.state_folder import state_folder

if TYPE_CHECKING:
    from qserve.runs import RunStore

__all__ = ["existing_store", "run_store"]


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
