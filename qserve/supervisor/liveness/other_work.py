"""What other programs compute on this machine meanwhile: a plan has the machine to itself, what is measured has not."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from dataclasses import dataclass

import psutil

__all__ = ["OtherWork", "Sample"]

_MOST_SAMPLES = 64


@dataclass(frozen=True)
class Sample:
    """At `unix_s` other programs had computed for `others_s` seconds of processors since the machine started."""

    unix_s: float
    others_s: float


class OtherWork:
    """Samples of it, from now on; `note` takes another one. Its owner calls it from one thread at a time."""

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque(maxlen=_MOST_SAMPLES)
        self.note()

    def note(self) -> None:
        """One more sample; the oldest are forgotten."""
        self._samples.append(Sample(time.time(), _busy_s() - _own_s()))

    def share_since(self, unix_s: float) -> float:
        """Of all processors, 0 to 1: from the last sample before `unix_s`, or the first there is, to the newest."""
        start = next((one for one in reversed(self._samples) if one.unix_s <= unix_s), self._samples[0])
        return share_between(start, self._samples[-1], psutil.cpu_count() or 1)


def share_between(start: Sample, end: Sample, num_processors: int) -> float:
    """0 where no time passed. Kernels count in ticks, so that a difference may fall below 0 by some."""
    passed_s = (end.unix_s - start.unix_s) * num_processors
    return min(1.0, max(0.0, (end.others_s - start.others_s) / passed_s)) if passed_s > 0 else 0.0


def _busy_s() -> float:
    """Of all processors of the machine; what its host gave to other machines (steal) was taken from us, too."""
    times = psutil.cpu_times()
    seconds = (getattr(times, name, 0.0) for name in ("user", "nice", "system", "irq", "softirq", "steal"))
    return float(sum(seconds))


def _own_s() -> float:
    """Of this process and those that it started, the ended ones included."""
    total, this = 0.0, psutil.Process()
    for process in (this, *this.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total
