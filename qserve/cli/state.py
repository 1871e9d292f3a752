"""Where qserve keeps what outlives a command."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["state_folder"]


def state_folder(state_dir: Path | None) -> Path:
    """--state-dir, else the user's state folder as the XDG Base Directory Specification has it."""
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return (state_dir or Path(home)) / "qserve"
