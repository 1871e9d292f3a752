"""The process in which the steps of bench/gpu.py run, seen from outside.

A kernel that faults leaves a process without its card, one that hangs can't be interrupted, and what failed may hold
memory. So a step that did not end well takes its process with it, and the next one gets a new one.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from typing import Any

__all__ = ["StepProcess"]


class StepProcess:
    """`command`, with the number of a pipe appended: a request a line on its input, an answer a line in the pipe."""

    def __init__(self, command: list[str]) -> None:
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None
        self._answers = -1

    def __enter__(self) -> StepProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def ask(self, request: dict[str, Any], limit_s: float) -> dict[str, Any]:
        """The answer to `request`; {"error": …} where the step failed, or ended its process, or took too long."""
        process = self._process or self._start()
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
            line = self._line(limit_s)
        except BrokenPipeError:
            line = b""
        if line is None:
            self.end()
            return {"error": f"did not end within {limit_s:.0f} s, and was stopped"}
        if not line:
            death = _death(process.wait())
            self.end()
            return {"error": f"its process {death}"}
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            self.end()
        return answer

    def fresh(self) -> None:
        """The next step gets a process of its own, with nothing of the others on the card."""
        self.end()

    def end(self) -> None:
        """Kill the process, if there is one: nothing of it stays on the card."""
        if self._process is None:
            return
        process, self._process = self._process, None
        process.kill()
        process.wait()
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        os.close(self._answers)

    def _start(self) -> subprocess.Popen[bytes]:
        self._answers, theirs = os.pipe()
        self._process = subprocess.Popen([*self._command, str(theirs)], stdin=subprocess.PIPE, pass_fds=(theirs,))
        os.close(theirs)
        return self._process

    def _line(self, limit_s: float) -> bytes | None:
        """Up to the end of the line; less where the process is gone, None where the time is over."""
        deadline_s, line = time.monotonic() + limit_s, b""
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([self._answers], [], [], max(0.0, deadline_s - time.monotonic()))
            if not ready:
                return None
            piece = os.read(self._answers, 65536)
            if not piece:
                return b""
            line += piece
        return line


def _death(returncode: int) -> str:
    if returncode >= 0:
        return f"ended with status {returncode}"
    hint = " (the kernel does this when RAM runs out)" if returncode == -signal.SIGKILL else ""
    return f"was killed by {signal.Signals(-returncode).name}{hint}"
