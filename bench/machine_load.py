"""What others computed on this machine meanwhile: a measurement that they disturbed says nothing."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

import numpy as np
import psutil

__all__ = ["MemoryProbe", "OthersLoad"]


@dataclass(frozen=True)
class _Moment:
    wall_s: float
    machine_s: float
    own_s: float


class OthersLoad:
    """Counts from its making on. Times of the whole machine are those of /proc/stat, with what a hypervisor took."""

    def __init__(self) -> None:
        self._start = _now()

    @property
    def share(self) -> float:
        """Of the machine's cores, the part that processes outside this one's tree have had since."""
        now, start = _now(), self._start
        others = (now.machine_s - start.machine_s) - (now.own_s - start.own_s)
        return max(0.0, others / ((now.wall_s - start.wall_s) * (os.cpu_count() or 1) or 1e-9))


class MemoryProbe:
    """How fast this machine reads its memory now, beside the best it was seen to do.

    Neighbours on the same host take memory bandwidth, and no counter of ours shows it: steal is of processors alone.
    """

    def __init__(self, megabytes: int = 256) -> None:
        self._values = np.ones(megabytes << 18, dtype=np.float32)
        self._best = 0.0
        self.share()

    def share(self) -> float:
        """Of the best reading so far: the best of three now, a tenth of a second in all."""
        now = max(self._bytes_per_s() for _ in range(3))
        self._best = max(self._best, now)
        return now / self._best

    def _bytes_per_s(self) -> float:
        start = time.perf_counter()
        self._values.sum()
        return self._values.nbytes / (time.perf_counter() - start)


def _now() -> _Moment:
    times = psutil.cpu_times()
    machine = sum(getattr(times, name, 0.0) for name in ("user", "nice", "system", "irq", "softirq", "steal"))
    return _Moment(time.monotonic(), machine, _own_s())


def _own_s() -> float:
    """CPU seconds of this process and all below it, those that have ended included."""
    total = 0.0
    own = psutil.Process()
    for process in [own, *own.children(recursive=True)]:
        try:
            total += sum(process.cpu_times()[:4])
        except psutil.NoSuchProcess:
            continue
    return total
