"""A worker's process: started in its own session, its output read by lines, ended by SIGTERM, then SIGKILL."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from qserve.errors import WorkerFailed
from qserve.supervisor import keys
from qserve.supervisor.liveness import stacks
from qserve.supervisor.output import WorkerOutput
from qserve.worker.process import LIFELINE, UNKNOWN_STATUS

__all__ = ["Child", "Descriptors"]

_END_INTERVAL_S = 0.5
_TERM_GRACE_S = 2.0
# The guard (worker/guard.py) ends on it what the engine started, and its shared memory; other workers are killed.
_END_FAMILY = signal.SIGUSR1
_FAMILY_GRACE_S = 10.0
_LAST_WORDS_S = 2.0


@dataclass(frozen=True)
class Descriptors:
    """What holds a worker's process, for the service that takes it over.

    Attributes:
        process: a pidfd of it (pidfd_open(2)).
        lifeline: the writing end of its standard input; the process is killed when nobody has it open.
        output: the reading end of its standard output and error.
    """

    process: int
    lifeline: int
    output: int


class _Process(Protocol):
    """As `asyncio.subprocess.Process`."""

    @property
    def pid(self) -> int: ...

    @property
    def returncode(self) -> int | None: ...

    async def wait(self) -> int: ...

    def send_signal(self, signal: int) -> None: ...


class Child:
    """One process, from `start` or `adopt` to `reap`. What it started in its process group does not outlive it."""

    def __init__(self, process: _Process, lifeline: int, output: WorkerOutput) -> None:
        """Use `start` or `adopt`."""
        self._process = process
        self._lifeline: int | None = lifeline
        self._output = output

    @classmethod
    async def start(
        cls, command: tuple[str, ...], environment: Mapping[str, str], log_file: Path, on_line: Callable[[str], None]
    ) -> Child:
        """`on_line` gets each line that it writes, without its end.

        Raises WorkerFailed where the machine has no process, memory or descriptor for it now.
        """
        with contextlib.ExitStack() as undo:
            try:
                theirs_life, life = _pipe(undo)
                ours_output, theirs_output = _pipe(undo)
                process = await asyncio.create_subprocess_exec(
                    *command,
                    stdin=theirs_life,
                    stdout=theirs_output,
                    stderr=asyncio.subprocess.STDOUT,
                    # A session of its own: Ctrl-C in the terminal reaches us alone, and we drain.
                    start_new_session=True,
                    env=_environment(environment),
                )
            except OSError as error:
                why = error.strerror or error
                raise WorkerFailed(
                    f"the worker's process can't be started: {why}; `ulimit -a` shows the limits"
                ) from error
            undo.pop_all()
        os.close(theirs_life)
        os.close(theirs_output)
        output = WorkerOutput(log_file, on_line)
        await output.begin(ours_output)
        return cls(process, life, output)

    @classmethod
    async def adopt(cls, pid: int, ends: Descriptors, log_file: Path, on_line: Callable[[str], None]) -> Child:
        """A process that another service had started; `ends` belong to it from now on. Needs Linux."""
        output = WorkerOutput(log_file, on_line)
        await output.begin(ends.output)
        return cls(_Adopted(pid, ends.process), ends.lifeline, output)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """None while it runs; `UNKNOWN_STATUS` once one has ended that was adopted."""
        return self._process.returncode

    async def wait(self, timeout_s: float) -> None:
        """Wait until it has ended, at most `timeout_s`."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), timeout_s)

    async def ended(self) -> None:
        """Returns when it has ended."""
        while self._process.returncode is None:
            await self.wait(_END_INTERVAL_S)

    async def end(self) -> None:
        """SIGTERM, then SIGKILL; returns once it has ended."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGTERM)
            await self._until_ended()
        self._kill_group()
        self._drop_lifeline()

    async def end_with_stacks(self, pids: list[int]) -> None:
        """End it with the stacks of the threads of `pids` in its log."""
        stacks.end_with_stacks(pids)
        await self.wait(_LAST_WORDS_S)
        await self.end()

    async def reap(self) -> None:
        """Kill the processes that it started, then read the rest of its output."""
        self._kill_group()
        self._drop_lifeline()
        # Something in a session of its own may still hold the pipe; the next start does not wait for it.
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._output.ended(), _LAST_WORDS_S)

    def become(self, line: bytes, log_file: Path, on_line: Callable[[str], None]) -> None:
        """Tell it what it is to become (`qserve.worker.standby`); what it writes from now on goes there."""
        assert self._lifeline is not None, "it runs"
        self._output.redirect(log_file, on_line)
        with contextlib.suppress(BrokenPipeError):  # it has just ended, which `ended` tells
            os.write(self._lifeline, line)

    def descriptors(self) -> Descriptors:
        """What another service needs to adopt it; the pidfd is new and the caller's. The process must run. Linux."""
        assert self._lifeline is not None, "it runs"
        one = self._process
        process = os.dup(one.descriptor) if isinstance(one, _Adopted) else os.pidfd_open(one.pid)
        return Descriptors(process, self._lifeline, self._output.descriptor)

    def pause(self) -> None:
        """Leave its output to another service, or until `resume`."""
        self._output.pause()

    def resume(self) -> None:
        """Read its output again."""
        self._output.resume()

    def let_go(self) -> None:
        """It belongs to another service; what this one held of it is closed."""
        self._output.close()
        self._drop_lifeline()

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

    def _drop_lifeline(self) -> None:
        if self._lifeline is not None:
            os.close(self._lifeline)
            self._lifeline = None


class _Adopted:
    """A process that is no child of this one: watched by its pidfd."""

    def __init__(self, pid: int, descriptor: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.descriptor = descriptor
        self._ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(descriptor, self._has_ended)

    async def wait(self) -> int:
        await self._ended.wait()
        return UNKNOWN_STATUS

    def send_signal(self, number: int) -> None:
        """Raises ProcessLookupError for one that has ended."""
        if self.returncode is not None:
            raise ProcessLookupError
        signal.pidfd_send_signal(self.descriptor, number)

    def _has_ended(self) -> None:
        asyncio.get_running_loop().remove_reader(self.descriptor)
        os.close(self.descriptor)
        self.returncode = UNKNOWN_STATUS
        self._ended.set()


def _pipe(undo: contextlib.ExitStack) -> tuple[int, int]:
    """Both ends are closed by `undo`."""
    ends = os.pipe()
    for end in ends:
        undo.callback(os.close, end)
    return ends


def _environment(wanted: Mapping[str, str]) -> dict[str, str]:
    """The worker's environment, without the service's keys: it has an internal one."""
    plain = {name: value for name, value in wanted.items() if name != keys.VARIABLE}
    return {**plain, **stacks.ENVIRONMENT, LIFELINE: "1"}
