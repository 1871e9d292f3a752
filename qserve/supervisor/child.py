"""A worker's process: started in its own session, its output read by lines, ended by SIGTERM, then SIGKILL."""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path

from qserve.errors import WorkerFailed
from qserve.runs.private import open_private
from qserve.supervisor import keys
from qserve.supervisor.liveness import stacks

__all__ = ["Child"]

_log = logging.getLogger("qserve.supervisor")
_END_INTERVAL_S = 0.5
_TERM_GRACE_S = 2.0
# The guard (worker/guard.py) ends on it what the engine started, and its shared memory; other workers are killed.
_END_FAMILY = signal.SIGUSR1
_FAMILY_GRACE_S = 10.0
_LAST_WORDS_S = 2.0


class Child:
    """One process, from `start` to `reap`. Whatever it started itself in its process group does not outlive it."""

    def __init__(self, process: asyncio.subprocess.Process, log_file: Path, on_line: Callable[[str], None]) -> None:
        """Use `start`. `hear` gets each line that it writes, without its end."""
        self._process = process
        self._log_file = log_file
        self._hear = on_line
        self._log_task = asyncio.create_task(self._capture())

    @classmethod
    async def start(
        cls, command: tuple[str, ...], environment: Mapping[str, str], log_file: Path, on_line: Callable[[str], None]
    ) -> Child:
        """Raises WorkerFailed where the machine has no process, memory or descriptor for it now."""
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                # A session of its own: Ctrl-C in the terminal reaches us alone, and we drain.
                start_new_session=True,
                env=_environment(environment),
                limit=1024 * 1024,
            )
        except OSError as error:
            why = error.strerror or error
            raise WorkerFailed(f"the worker's process can't be started: {why}; `ulimit -a` shows the limits") from error
        return cls(process, log_file, on_line)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """None while it runs."""
        return self._process.returncode

    async def wait(self, timeout_s: float) -> None:
        """Wait until it has ended, at most `timeout_s`."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), timeout_s)

    async def ended(self) -> None:
        """`Process.wait` alone waits for the pipe as well, which something that it started may still hold."""
        while self._process.returncode is None:
            await self.wait(_END_INTERVAL_S)

    async def end(self) -> None:
        """SIGTERM, then SIGKILL; returns once it has ended."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()
            await self._until_ended()
        self._kill_group()

    async def end_with_stacks(self, pids: list[int]) -> None:
        """End it with the stacks of the threads of `pids` in its log."""
        stacks.end_with_stacks(pids)
        await self.wait(_LAST_WORDS_S)
        await self.end()

    async def reap(self) -> None:
        """Kill the processes that it started, then read the rest of its output."""
        self._kill_group()
        # Something in a session of its own may still hold the pipe; the next start does not wait for it.
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._log_task, _LAST_WORDS_S)

    async def _until_ended(self) -> None:
        for wait_s, more in ((_TERM_GRACE_S, _END_FAMILY), (_FAMILY_GRACE_S, signal.SIGKILL)):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), wait_s)
                return
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(more)
        self._kill_group()
        await self._process.wait()

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    async def _capture(self) -> None:
        assert self._process.stdout is not None, "it is a pipe"
        with self._opened_log() as log:
            while line := await _line(self._process.stdout):
                # A full disk loses log lines and nothing else.
                with contextlib.suppress(OSError):
                    log.write(line)
                self._hear(line.decode(errors="replace").strip())

    def _opened_log(self) -> io.FileIO:
        """Unbuffered: what a full disk did not take must not be tried again when the file is closed."""
        try:
            return io.FileIO(self._log_file, "a", opener=open_private)
        except OSError as error:
            _log.warning("%s can't be written (%s); the service continues", self._log_file, error)
            return io.FileIO(os.devnull, "a")


def _environment(wanted: Mapping[str, str]) -> dict[str, str]:
    """The worker's environment, without the service's keys: it has an internal one."""
    return {**{name: value for name, value in wanted.items() if name != keys.VARIABLE}, **stacks.ENVIRONMENT}


async def _line(stream: asyncio.StreamReader) -> bytes:
    """The next line; empty at the end. Lines beyond the stream's limit are skipped."""
    while True:
        with contextlib.suppress(ValueError):
            return await stream.readline()
