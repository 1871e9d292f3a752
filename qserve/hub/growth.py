"""How far a download is, by the growth of its folder: so it is known whatever protocol the library takes."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from qserve.units import format_bytes, format_seconds

__all__ = ["Arrived", "Growth", "watched"]

_INTERVAL_S = 1.0
_RATE_OVER_S = 10.0
_SILENT_AFTER_S = 15.0


@dataclass(frozen=True)
class Arrived:
    """How much of a download is there, of all its files together. As text it is for people.

    `pace`: rate and time left, or for how long nothing came.
    """

    num_bytes: int
    total: int
    pace: str

    @property
    def share(self) -> float:
        """From 0 to 1."""
        return self.num_bytes / self.total

    def __str__(self) -> str:
        told = f"{format_bytes(self.num_bytes)} of {format_bytes(self.total)}"
        return f"{told} · {self.pace}" if self.pace else told


@dataclass
class Growth:
    """Bytes that came, out of `total`, and their rate over the last seconds. Pure: it is told the time."""

    total: int
    _seen: deque[tuple[float, int]] = field(default_factory=deque)
    _last_growth_s: float = 0.0

    def add(self, now_s: float, num_bytes: int) -> Arrived:
        """What is to be said when `num_bytes` are there."""
        num_bytes = min(max(num_bytes, 0), self.total)
        if not self._seen or num_bytes > self._seen[-1][1]:
            self._last_growth_s = now_s
        self._seen.append((now_s, num_bytes))
        while len(self._seen) > 2 and now_s - self._seen[1][0] >= _RATE_OVER_S:
            self._seen.popleft()
        return Arrived(num_bytes, self.total, self._pace(now_s, num_bytes))

    def _pace(self, now_s: float, num_bytes: int) -> str:
        if num_bytes == self.total:
            return "verifying"
        silent_s = now_s - self._last_growth_s
        if silent_s >= _SILENT_AFTER_S:
            return f"nothing arrived for {silent_s:.0f} s"
        began_s, before = self._seen[0]
        if num_bytes == before:
            return ""
        rate = (num_bytes - before) / (now_s - began_s)
        left_s = (self.total - num_bytes) / rate
        return f"{format_bytes(rate)}/s · {format_seconds(left_s)} left"


@contextlib.contextmanager
def watched(folder: Path, total: int, progress: Callable[[Arrived], None], first: int = 0) -> Iterator[None]:
    """Calls `progress` once a second while `folder` grows, for `total` bytes of which `first` are in it already."""
    if not total:
        yield
        return
    before, growth, ended = _size(folder) - first, Growth(total), threading.Event()
    progress(growth.add(time.monotonic(), first))

    def watch() -> None:
        while not ended.wait(_INTERVAL_S):
            progress(growth.add(time.monotonic(), _size(folder) - before))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


def _size(folder: Path) -> int:
    """Bytes of its files; one may be renamed meanwhile."""
    total = 0
    for file in folder.glob("*"):
        with contextlib.suppress(OSError):
            total += file.stat().st_size
    return total
