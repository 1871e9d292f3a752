"""What a process was started with, asked of one that may have ended since it was listed."""

from __future__ import annotations

import psutil

__all__ = ["environment", "words"]


def words(process: psutil.Process) -> list[str]:
    """Its command line; empty once it has ended, also where nobody has waited for it yet."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def environment(process: psutil.Process) -> dict[str, str]:
    """Its environment; empty once it has ended."""
    try:
        return process.environ()
    except psutil.Error:
        return {}
