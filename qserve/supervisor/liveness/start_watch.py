"""Detects a stuck start: a time limit for each phase since the last sign of progress.

Signs are lines of the engine's log, a new phase, and bytes read from disk. Time on a core is none: what waits for
another card spins.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from qserve.errors import WorkerFailed

__all__ = ["StartStuck", "StartWatch", "limit_of"]

_DEFAULT_S = 900.0
# Compiling and capturing are silent for minutes on small machines; processes that are to find each other are not.
_LIMITS_S = {
    "starting the process": 300.0,
    "importing torch and transformers": 300.0,
    "starting the engine's processes": 300.0,
    "loading weights": 600.0,
    "listening": 120.0,
    "starting the server": 120.0,
    "compiling": 1800.0,
    "compiling kernels": 1800.0,
    "capturing CUDA graphs": 1800.0,
}
_CHECK_INTERVAL_S = 5.0


class StartStuck(WorkerFailed):
    """A start that made no progress; the stacks of its processes are in `log_file`."""

    def __init__(self, what: str, log_file: Path) -> None:
        """`what`: which phase, and for how long."""
        super().__init__(
            f"{what}. The usual causes: NCCL can't connect the cards (try --engine-args with "
            "NCCL_DEBUG=INFO in the environment), peer-to-peer access is broken by IOMMU or ACS (NCCL_P2P_DISABLE=1, "
            "--disable-custom-all-reduce; in the BIOS: IOMMU off), shared memory is too small (docker: --ipc=host or "
            f"--shm-size=10g), or a slow network disk. The stack of each process is at the end of {log_file}"
        )


def limit_of(phase: str) -> float:
    """Seconds that a phase may be silent."""
    return _LIMITS_S.get(phase, _DEFAULT_S)


class StartWatch:
    """`see` takes observations of a start and returns the error message once it is stuck.

    `limit_s` is how long any phase may be silent; None: each as long as `limit_of` says.
    """

    def __init__(self, limit_s: float | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit_s = limit_s
        self._clock = clock
        self._seen: tuple[str, int] | None = None
        self._num_read_bytes = 0
        self._since_s = self._checked_s = clock()

    def see(self, phase: str, num_lines: int, read_bytes: Callable[[], int]) -> str | None:
        """`num_lines` of log so far; `read_bytes` is asked now and then, and only where the log is silent."""
        now_s = self._clock()
        if (phase, num_lines) != self._seen:
            self._seen, self._since_s = (phase, num_lines), now_s
            return None
        if now_s - self._checked_s < _CHECK_INTERVAL_S:
            return None
        self._checked_s = now_s
        before, self._num_read_bytes = self._num_read_bytes, read_bytes()
        if self._num_read_bytes > before:
            self._since_s = now_s
        silent_s = now_s - self._since_s
        if silent_s < (limit_of(phase) if self._limit_s is None else self._limit_s):
            return None
        return (
            f"the start is stuck in the phase {phase!r}: no line in the log and nothing read for {silent_s:.0f} s "
            "(--start-timeout allows more)"
        )
