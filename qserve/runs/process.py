"""Identifies the process of a run by its id and start time, since process ids are reused."""

from __future__ import annotations

import socket
from pathlib import Path

__all__ = ["here", "is_gone", "start_of"]


def here() -> str:
    """Where process ids mean what they mean to us: this host, and in it this container."""
    try:
        return f"{socket.gethostname()} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return socket.gethostname()


def start_of(pid: int) -> str:
    """Clock ticks from boot to the process's start, and which boot; empty where there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
    # The name in brackets may hold spaces and brackets; the start is the 22nd field, 20th after it.
    return f"{boot} {stat.rpartition(')')[2].split()[19]}"


def is_gone(pid: int, process_start: str) -> bool:
    """Whether this process has ended, on the host that it ran on. Its id may be another's by now."""
    return bool(process_start) and start_of(pid) != process_start
