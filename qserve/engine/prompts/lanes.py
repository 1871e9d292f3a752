"""The worker's side of `process`: small bodies have a process of their own, so that they never wait for large ones."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from array import array
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from qserve.engine.prompts.process import LENGTHS, ReaderSettings
from qserve.wire.errors import ApiError

__all__ = ["PromptLanes", "ReadBody"]

Kind = Literal["chat", "completion", "tokenize", "detokenize"]

SMALL_BYTES = 64 * 1024
"""What is shorter takes some 50 ms at most."""

_SMALL_CPU_S, _LARGE_CPU_S = 3.0, 15.0
# A process that does not answer by then is in one long call of C; a loaded machine gets this much patience.
_WALL_FACTOR = 6
_IDLE_S = 60.0


@dataclass(frozen=True)
class ReadBody:
    """A body as it was read: the request's fields without its texts, as JSON, and the prompts' ids; or the answer."""

    request: str = ""
    prompts: tuple[array[int], ...] = ()
    answer: bytes = b""


class PromptLanes:
    """Two processes, each with a queue, first come, first served. The one for large bodies ends when it is idle."""

    def __init__(self, settings: ReaderSettings, file: Path) -> None:
        """Writes `settings` to `file`, where the processes find them."""
        file.touch(0o600)
        file.write_text(json.dumps(asdict(settings)))
        self._small = _Lane(file, _SMALL_CPU_S, idle_s=None)
        self._large = _Lane(file, _LARGE_CPU_S, idle_s=_IDLE_S)

    async def start(self) -> None:
        """Start the process for small bodies, so that the first request does not wait for it."""
        await self._small.start()

    async def close(self) -> None:
        """End both."""
        await self._small.close()
        await self._large.close()

    async def read(self, kind: Kind, body: bytes) -> ReadBody:
        """What the body says. Raises ApiError."""
        lane = self._small if len(body) <= SMALL_BYTES else self._large
        head, data = await lane.ask(kind, body)
        if "error" in head:
            raise ApiError(**head["error"])
        if "lengths" not in head:
            return ReadBody(answer=data)
        prompts: list[array[int]] = []
        start = 0
        for length in head["lengths"]:
            prompts.append(array("i"))
            prompts[-1].frombytes(data[start : start + 4 * length])
            start += 4 * length
        return ReadBody(head["request"], tuple(prompts))


class _Lane:
    """A process and the queue before it."""

    def __init__(self, settings: Path, cpu_s: float, idle_s: float | None) -> None:
        self._command = (sys.executable, "-m", "qserve.engine.prompts.process", str(settings), str(cpu_s))
        self._wall_s = _WALL_FACTOR * cpu_s
        self._idle_s = idle_s
        self._process: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()
        self._idle_timer: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        async with self._turn:
            await self._running()

    async def close(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def ask(self, kind: Kind, body: bytes) -> tuple[dict[str, Any], bytes]:
        # A frame that was begun is ended, whoever gave up waiting for it: the next one would not be understood.
        return await asyncio.shield(asyncio.ensure_future(self._in_turn(kind, body)))

    async def _in_turn(self, kind: Kind, body: bytes) -> tuple[dict[str, Any], bytes]:
        async with self._turn:
            process = await self._running()
            self._end_when_idle()
            try:
                async with asyncio.timeout(self._wall_s):
                    head, data = await _exchange(process, kind, body)
                if head["is_last"]:  # it took so much that it ends
                    await self.close()
                return head, data
            except TimeoutError:
                await self.close()
                message = f"the chat template and the tokenizer did not end within {self._wall_s:g} s for this request"
                raise ApiError(400, message, "prompt_too_slow") from None
            except (OSError, EOFError):
                await self.close()
                message = "the process that reads prompts ended on this request; its template needs too much memory"
                raise ApiError(400, message, "prompt_too_large") from None

    async def _running(self) -> asyncio.subprocess.Process:
        if self._process is None or self._process.returncode is not None:
            self._process = await asyncio.create_subprocess_exec(
                *self._command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
            )
        return self._process

    def _end_when_idle(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        if self._idle_s is not None:
            self._idle_timer = asyncio.get_running_loop().call_later(self._idle_s, self._end_if_idle)

    def _end_if_idle(self) -> None:
        if self._turn.locked():
            self._end_when_idle()
        elif self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            self._process = None


async def _exchange(process: asyncio.subprocess.Process, kind: Kind, body: bytes) -> tuple[dict[str, Any], bytes]:
    assert process.stdin is not None and process.stdout is not None, "both are pipes"
    head = json.dumps({"what": kind}).encode()
    process.stdin.writelines((LENGTHS.pack(len(head), len(body)), head, body))
    await process.stdin.drain()
    head_length, body_length = LENGTHS.unpack(await process.stdout.readexactly(LENGTHS.size))
    answer: dict[str, Any] = json.loads(await process.stdout.readexactly(head_length))
    return answer, await process.stdout.readexactly(body_length)
