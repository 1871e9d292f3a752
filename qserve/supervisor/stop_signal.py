"""The signals that `qserve up` acts on: SIGTERM and Ctrl-C stop it, SIGHUP restarts its workers."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field

__all__ = ["StopSignal"]


@dataclass
class StopSignal:
    """SIGTERM or Ctrl-C: once to drain (`first`), twice to stop at once (`second`)."""

    first: asyncio.Event = field(default_factory=asyncio.Event)
    second: asyncio.Event = field(default_factory=asyncio.Event)

    def install(self) -> None:
        """Call within a running loop."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._arrive)

    def on_hangup(self, restart: Callable[[], object]) -> None:
        """SIGHUP restarts the workers, unless the terminal of this process was closed: then it stops.

        Under `nohup` the loss of the terminal does nothing.
        """
        outlives_terminal = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        had_terminal = _has_terminal()

        def arrive() -> None:
            nonlocal had_terminal
            if not had_terminal or _has_terminal():
                restart()
            elif outlives_terminal:
                had_terminal = False  # further ones request a restart
            else:
                self._arrive()

        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, arrive)

    def _arrive(self) -> None:
        (self.second if self.first.is_set() else self.first).set()


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True
