"""A lease: its holder ends itself unless the lease is renewed in time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

__all__ = ["Lease"]

_LOOKS_PER_LEASE = 10


class Lease:
    """Calls `end` in a thread of its own once `renew` was not called for `duration_s`.

    The clock goes on while a process is stopped: one that wakes up after its lease ends at once.
    """

    def __init__(self, duration_s: float, end: Callable[[], None]) -> None:
        """It begins now."""
        self._duration_s = duration_s
        self._end = end
        self._renewed_s = time.monotonic()
        threading.Thread(target=self._watch, daemon=True, name="lease").start()

    def renew(self) -> None:
        """The other side is there."""
        self._renewed_s = time.monotonic()

    def _watch(self) -> None:
        while time.monotonic() - self._renewed_s <= self._duration_s:
            time.sleep(self._duration_s / _LOOKS_PER_LEASE)
        self._end()
