"""Which processes descend from one."""

from __future__ import annotations

import psutil

__all__ = ["children_of", "tree_of"]


def tree_of(pid: int) -> list[int]:
    """A process and all below it; empty once it is gone."""
    try:
        return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    except psutil.Error:
        return []


def children_of(pid: int) -> list[int]:
    """Those that it started itself."""
    try:
        return [child.pid for child in psutil.Process(pid).children()]
    except psutil.Error:
        return []
