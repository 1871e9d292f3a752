"""Ctrl-C and SIGTERM of `qserve train`: from the start of a run they are counted, before it they end the command."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

__all__ = ["StopSignals"]


class StopSignals:
    """Use it as `with StopSignals().installed() as stop`, in the main thread."""

    def __init__(self) -> None:
        self.count = 0
        self._last = signal.SIGINT
        self._is_counting = False

    @property
    def exit_status(self) -> int:
        """As shells write it: 130 after Ctrl-C, 143 after SIGTERM."""
        return 128 + self._last

    @contextlib.contextmanager
    def installed(self) -> Iterator[StopSignals]:
        """Until the block ends, both signals come here; outside of `counting` they raise KeyboardInterrupt."""
        before = {number: signal.signal(number, self._arrive) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextlib.contextmanager
    def counting(self) -> Iterator[StopSignals]:
        """In the block a signal only raises `count`: what follows a run looks there."""
        with self._set(is_counting=True):
            yield self

    @contextlib.contextmanager
    def raising(self) -> Iterator[StopSignals]:
        """For a block within that of `counting`: a signal is counted and raises KeyboardInterrupt as well."""
        with self._set(is_counting=False):
            yield self

    @contextlib.contextmanager
    def _set(self, *, is_counting: bool) -> Iterator[None]:
        before, self._is_counting = self._is_counting, is_counting
        try:
            yield
        finally:
            self._is_counting = before

    def _arrive(self, number: int, _: FrameType | None) -> None:
        self.count += 1
        self._last = signal.Signals(number)
        if not self._is_counting:
            raise KeyboardInterrupt
