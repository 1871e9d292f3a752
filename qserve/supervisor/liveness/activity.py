"""Kernel counters that show whether processes work: time on a core, pages from disk, bytes read, threads that run.

For telling a worker that hangs from one that is busy: a prefill step of a minute computes, a stopped or deadlocked
process does not.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

__all__ = ["Activity", "activity_of", "is_running", "read_bytes_of"]

# Below this share of a core a process only answers questions about its health.
_IDLE_CORES = 0.02
_WAITING = frozenset("SItTZX")  # asleep, idle, stopped, traced, dead; not: running (R), waiting for a disk (D)


@dataclass(frozen=True)
class Activity:
    """Sums over some processes since they began."""

    cpu_s: float
    num_major_faults: int
    num_read_bytes: int

    def worked_since(self, before: Activity, elapsed_s: float) -> bool:
        """Whether anything was computed or read in these `elapsed_s`."""
        return (
            self.cpu_s - before.cpu_s > _IDLE_CORES * elapsed_s
            or self.num_major_faults > before.num_major_faults
            or self.num_read_bytes > before.num_read_bytes
        )


def activity_of(pids: Iterable[int]) -> Activity:
    """What these processes have done so far; those that are gone did nothing."""
    cpu_s, faults, read = 0.0, 0, 0
    for pid in pids:
        with contextlib.suppress(psutil.Error, OSError, ValueError, IndexError):
            times = psutil.Process(pid).cpu_times()
            cpu_s += times.user + times.system
            faults += _major_faults(pid)
            read += _read_bytes(pid)
    return Activity(cpu_s, faults, read)


def read_bytes_of(pids: Iterable[int]) -> int:
    """Bytes that came from a disk for these processes, mapped files included as pages."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError, ValueError, IndexError):
            total += _read_bytes(pid)
    return total


def is_running(pids: Iterable[int]) -> bool:
    """Whether any thread of these runs, wants to, or waits for a disk, right now."""
    return any(state not in _WAITING for pid in pids for state in _thread_states(pid))


def _major_faults(pid: int) -> int:
    # The name in parentheses may hold anything; majflt is the 12th field of proc(5)'s stat, the 10th after the name.
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[9])


def _read_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    return next(int(line.partition(":")[2]) for line in lines if line.startswith("read_bytes"))


def _thread_states(pid: int) -> Iterator[str]:
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError, IndexError):
                yield (thread / "stat").read_text().rpartition(")")[2].split()[0]
