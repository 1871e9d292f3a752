"""A program on a pseudo-terminal: what it shows, and what is typed."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import signal
import time

__all__ = ["Terminal"]

_LIMIT_S = 60


class Terminal:
    """`command` on a terminal of its own; `screen` is all that it has written."""

    def __init__(self, *command: str, **environment: str) -> None:
        self._pid, self._end = pty.fork()
        if self._pid == 0:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell's background job has it ignored, and so its children
            os.execvpe(command[0], command, {**os.environ, "TERM": "dumb", "COLUMNS": "80", **environment})
        self.screen = ""
        self._seen = 0

    def until(self, text: str) -> None:
        """Read on until `text` is shown behind what was waited for before."""
        began_s = time.monotonic()
        while text not in self.screen[self._seen :]:
            assert time.monotonic() - began_s < _LIMIT_S, f"{text!r} is not on the screen: {self.screen}"
            if select.select([self._end], [], [], 0.1)[0]:
                self.screen += os.read(self._end, 65536).decode()
        self._seen = self.screen.index(text, self._seen) + len(text)

    def type(self, keys: str) -> None:
        os.write(self._end, keys.encode())

    def status(self) -> int:
        """Wait for its end."""
        with contextlib.suppress(OSError):  # once the other side is closed
            while os.read(self._end, 65536):
                pass
        os.close(self._end)
        return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
