"""What the processes of a service take while they are attacked."""

from __future__ import annotations

import threading
from contextlib import suppress
from types import TracebackType

import psutil

__all__ = ["MemoryWatch"]

_EVERY_S = 0.2
_LIMIT_MIB = 10_240


class MemoryWatch:
    """Looks at a process and all that it starts, in a thread of its own, and kills what would take the machine.

    Attributes:
        limit_mib: taken beyond this, the largest process is killed.
        most_mib: the most, beyond what there was at `begin`.
    """

    def __init__(self, pid: int, limit_mib: int = _LIMIT_MIB) -> None:
        self.limit_mib = limit_mib
        self.most_mib = 0
        self.has_killed = False
        self._root = psutil.Process(pid)
        self._base: int | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def begin(self) -> None:
        """A round begins; the first one's memory is what all are held against."""
        self._base = self._base if self._base is not None else sum(_pss_mib(self._root).values())

    def __enter__(self) -> MemoryWatch:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(_EVERY_S):
            if self._base is None:
                continue
            taken = _pss_mib(self._root)
            self.most_mib = max(self.most_mib, sum(taken.values()) - self._base)
            if sum(taken.values()) - self._base > self.limit_mib:
                self.has_killed = True
                with suppress(psutil.Error):
                    max(taken, key=lambda one: taken[one]).kill()


def _pss_mib(root: psutil.Process) -> dict[psutil.Process, int]:
    taken = {}
    with suppress(psutil.Error):
        for one in (root, *root.children(recursive=True)):
            with suppress(psutil.Error):
                taken[one] = one.memory_full_info().pss >> 20
    return taken
