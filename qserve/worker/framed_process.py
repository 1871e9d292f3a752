"""A child process that answers one frame at a time, so that a slow request blocks only this process.

A frame, each way: two lengths, a JSON head, and the bytes that go with it. The child ends with its standard input, or
after an answer whose head says `is_last`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO

__all__ = ["Frame", "FramedProcess", "ProcessEnded", "frames", "send_frame"]

_LENGTHS = struct.Struct("!II")

Frame = tuple[dict[str, Any], bytes]


class ProcessEnded(EOFError):
    """In the middle of a frame. `status`: as `returncode` of subprocess has it, less than 0 for a signal."""

    def __init__(self, status: int | None) -> None:
        super().__init__(f"the process ended with status {status}")
        self.status = status


class FramedProcess:
    """The parent's side: starts the process when it is first asked, and ends it when it was idle for a while."""

    def __init__(
        self,
        module: str,
        *arguments: str,
        yields: bool = False,
        idle_s: float | None = None,
        wall_s: float | None = None,
    ) -> None:
        """`python -m module arguments`; `yields` the processor to streams. None: it never ends for being idle; it may
        take as long as it takes.
        """
        before = ("qserve.worker.low_priority",) if yields else ()
        self._command = (sys.executable, "-m", *before, module, *arguments)
        self._idle_s = idle_s
        self._wall_s = wall_s
        self._turn = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None
        # Told to end; asyncio would complain of one that nobody holds while it still runs.
        self._leaving: set[asyncio.Task[int]] = set()
        self._idle_timer: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        """Before the first frame, so that it does not wait."""
        async with self._turn:
            await self._running()

    async def ask(self, compose: Callable[[bool], Frame]) -> Frame:
        """One frame there and one back. `compose` is called when it is this one's turn; true: the process is new.

        Raises TimeoutError after `wall_s`, ProcessEnded where it ended, OSError where there can be none; the next frame
        gets a new one.
        """
        # A frame that was begun is ended, whoever gave up waiting for it: the next one would not be understood.
        return await asyncio.shield(asyncio.ensure_future(self._in_turn(compose)))

    async def close(self) -> None:
        """End it at once, if it runs."""
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        await asyncio.gather(*self._leaving)

    async def _in_turn(self, compose: Callable[[bool], Frame]) -> Frame:
        async with self._turn:
            process, is_new = await self._running()
            self._end_when_idle()
            try:
                async with asyncio.timeout(self._wall_s):
                    answer, data = await _exchange(process, *compose(is_new))
                if answer.get("is_last"):
                    await self.close()
                return answer, data
            except TimeoutError:
                await self.close()
                raise
            except (OSError, EOFError) as error:
                await self.close()
                raise ProcessEnded(process.returncode) from error

    async def _running(self) -> tuple[asyncio.subprocess.Process, bool]:
        if self._process is not None and self._process.returncode is None:
            return self._process, False
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is not for it
        )
        return self._process, True

    def _end_when_idle(self) -> None:
        """It keeps the memory of the largest body that it saw."""
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        if self._idle_s is not None:
            self._idle_timer = asyncio.get_running_loop().call_later(self._idle_s, self._end_if_idle)

    def _end_if_idle(self) -> None:
        if self._turn.locked():
            self._end_when_idle()
        elif self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            leaving = asyncio.ensure_future(self._process.wait())
            self._leaving.add(leaving)
            leaving.add_done_callback(self._leaving.discard)
            self._process = None


async def _exchange(process: asyncio.subprocess.Process, head: dict[str, Any], body: bytes) -> Frame:
    assert process.stdin is not None and process.stdout is not None, "both are pipes"
    encoded = json.dumps(head).encode()
    process.stdin.writelines((_LENGTHS.pack(len(encoded), len(body)), encoded, body))
    await process.stdin.drain()
    head_length, body_length = _LENGTHS.unpack(await process.stdout.readexactly(_LENGTHS.size))
    answer: dict[str, Any] = json.loads(await process.stdout.readexactly(head_length))
    return answer, await process.stdout.readexactly(body_length)


def frames(source: BinaryIO) -> Iterator[Frame]:
    """The child's side: frames as they come, until there are no more."""
    while lengths := source.read(_LENGTHS.size):
        head_length, body_length = _LENGTHS.unpack(lengths)
        yield json.loads(source.read(head_length)), source.read(body_length)


def send_frame(sink: BinaryIO, head: dict[str, Any], parts: Sequence[bytes] = ()) -> None:
    """The answer to the last one."""
    encoded = json.dumps(head).encode()
    sink.writelines([_LENGTHS.pack(len(encoded), sum(map(len, parts))), encoded, *parts])
    sink.flush()
