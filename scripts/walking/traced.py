"""The calls between files of a package while something runs in this thread."""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

# A function of its own only before Python 3.12.
_COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>")


class Trace:
    """A profiler, for sys.setprofile. A coroutine or generator that goes on is a call as well: it is entered again."""

    def __init__(self, package: Path) -> None:
        self._root = f"{package}/"
        self._last = ""
        self.calls = 0
        self.switches = 0
        self.functions: set[tuple[str, str, int]] = set()
        self.entered: Counter[str] = Counter()
        self.visits: Counter[str] = Counter()
        self.callers: dict[str, set[tuple[str, str]]] = defaultdict(set)

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or code.co_name == "<module>" or not self._is_counted(frame):
            return
        file = self._name(frame)
        self.calls += 1
        self.functions.add((file, code.co_name, code.co_firstlineno))
        if file != self._last:
            self.switches += 1
            self.entered[file] += 1
        self._last = file
        above = frame.f_back
        while above is not None and not self._is_counted(above):
            above = above.f_back
        if above is not None and above.f_code.co_filename != code.co_filename:
            self.visits[file] += 1
            self.callers[file].add((self._name(above), above.f_code.co_name))

    def _is_counted(self, frame: FrameType) -> bool:
        code = frame.f_code
        return code.co_filename.startswith(self._root) and code.co_name not in _COMPREHENSIONS

    def _name(self, frame: FrameType) -> str:
        return frame.f_code.co_filename.removeprefix(self._root)

    @property
    def story(self) -> list[str]:
        """Files that call others, in the order in which they are first entered; the others are leaves."""
        calling = {file for callers in self.callers.values() for file, _ in callers}
        return [file for file in self.visits if file in calling]

    @property
    def totals(self) -> dict[str, int]:
        """Files, functions, calls, and switches: calls that enter another file than the call before."""
        return {
            "files": len(self.entered),
            "functions": len(self.functions),
            "calls": self.calls,
            "switches": self.switches,
        }


@contextmanager
def traced(trace: Trace) -> Iterator[None]:
    """Counts what this thread calls within the block."""
    sys.setprofile(trace)
    try:
        yield
    finally:
        sys.setprofile(None)
