"""The state folder: where qserve keeps runs, files and caches."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["state_folder"]


def state_folder(state_dir: Path | None) -> Path:
    """--state-dir, else $QSERVE_STATE_DIR, else the user's state folder by the XDG Base Directory Specification."""
    home = os.environ.get("QSERVE_STATE_DIR") or os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return (state_dir or Path(home)) / "qserve"
