"""What the seconds of a worker's start were spent on."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["StartPhases"]

_FIRST = "starting the process"


class StartPhases:
    """The phases of one start."""

    def __init__(self, took_s: dict[str, float], report: Callable[[str], None]) -> None:
        """`took_s` grows with each phase that is over; `report` hears the name of each that begins after the first."""
        self._took_s = took_s
        self._report = report
        self.current = _FIRST
        self._began_s = time.monotonic()

    def enter(self, name: str) -> None:
        """The next phase, unless it is in it already. A phase may come several times: its times add up."""
        if name == self.current:
            return
        now_s = time.monotonic()
        self._took_s[self.current] = round(self._took_s.get(self.current, 0.0) + now_s - self._began_s, 3)
        self.current, self._began_s = name, now_s
        self._report(name)
