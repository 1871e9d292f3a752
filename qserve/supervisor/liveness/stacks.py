"""Dumps the stacks of hanging processes to the worker's log.

Workers run with PYTHONFAULTHANDLER, so that SIGABRT makes Python write every thread's stack before the process ends,
also where C code holds the interpreter. No debugger, and no right to trace other processes, is needed.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
from collections.abc import Iterable, Mapping
from pathlib import Path

import psutil

__all__ = ["ENVIRONMENT", "end_with_stacks", "states_of"]

ENVIRONMENT: Mapping[str, str] = {"PYTHONFAULTHANDLER": "1"}


def states_of(pids: Iterable[int]) -> list[str]:
    """A line for each process: its name, its state, and what its main thread waits for in the kernel."""
    lines = []
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            state = f"{process.status()}{_kernel_wait(pid)}, {process.num_threads()} threads"
            lines.append(f"{pid} {process.name()}: {state}")
    return lines


def end_with_stacks(pids: Iterable[int]) -> None:
    """Have each of them write its stacks and end. One that is stopped goes on for as long as that takes."""
    for pid in pids:
        with contextlib.suppress(psutil.Error, OSError, ValueError):
            psutil.Process(pid).rlimit(resource.RLIMIT_CORE, (0, 0))  # no core file of a model's size
            os.kill(pid, signal.SIGABRT)
            os.kill(pid, signal.SIGCONT)


def _kernel_wait(pid: int) -> str:
    try:
        name = Path(f"/proc/{pid}/wchan").read_text()
    except OSError:
        return ""
    return f" in {name}" if name not in ("", "0") else ""
