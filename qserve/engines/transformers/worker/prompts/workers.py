"""The worker's side of `process`: small bodies have a process of their own, so that they never wait for large ones."""

from __future__ import annotations

import asyncio
import json
import signal
from dataclasses import asdict
from pathlib import Path
from typing import Literal

from qserve.engines.transformers.worker.prompts.read_body import ChatFields, CompletionFields, ReadBody
from qserve.engines.transformers.worker.prompts.reader_settings import ReaderSettings
from qserve.errors import BrokenCheckpoint
from qserve.prompts.template import TEMPLATE_FAILS, TRIALS
from qserve.wire.errors import ApiError
from qserve.worker.framed_process import Frame, FramedProcess, ProcessEnded

__all__ = ["AnswerKind", "ChatKind", "PromptWorkers"]

ChatKind = Literal["chat", "messages", "responses"]
AnswerKind = Literal["tokenize", "detokenize", "count_tokens", "input_tokens"]

SMALL_BYTES = 64 * 1024
"""What is shorter takes some 50 ms at most."""

_SMALL_CPU_S, _LARGE_CPU_S = 3.0, 15.0
# A process that does not answer by then is in one long call of C; a loaded machine gets this much patience.
_WALL_FACTOR = 6
_IDLE_S = 60.0
_LAST_MOMENTS_S = 1.0


class PromptWorkers:
    """Two processes, each with a queue, first come, first served. The one for large bodies ends when it is idle."""

    def __init__(self, settings: ReaderSettings, file: Path) -> None:
        """Writes `settings` to `file`, where the processes find them."""
        file.touch(0o600)
        file.write_text(json.dumps(asdict(settings)))
        self._small = _PromptWorker(file, _SMALL_CPU_S, yields=False, idle_s=None)
        self._large = _PromptWorker(file, _LARGE_CPU_S, yields=True, idle_s=_IDLE_S)

    async def start(self) -> None:
        """Start the process for small bodies, so that the first request does not wait for it.

        Raises BrokenCheckpoint where the chat template fails, by a fault of its own, on every plain conversation.
        """
        await self._small.process.start()
        why = ""
        for messages in TRIALS:
            try:
                await self.chat("chat", json.dumps({"model": "m", "messages": messages}).encode())
                return
            except ApiError as error:
                why = str(error)
                if TEMPLATE_FAILS not in why:  # it refuses on purpose, or there is none, or no end of it
                    return
        raise BrokenCheckpoint(f"the chat template fails on every conversation ({why}); correct it")

    async def close(self) -> None:
        """End both."""
        await self._small.process.close()
        await self._large.process.close()

    async def chat(self, kind: ChatKind, body: bytes) -> ReadBody[ChatFields]:
        """What a chat in the words of an API says. Raises ApiError."""
        return ReadBody.from_frame(ChatFields, *await self._read(kind, body))

    async def completion(self, body: bytes) -> ReadBody[CompletionFields]:
        """What a completion says. Raises ApiError."""
        return ReadBody.from_frame(CompletionFields, *await self._read("completion", body))

    async def answer(self, kind: AnswerKind, body: bytes) -> bytes:
        """The answer to a question about tokens, as JSON. Raises ApiError."""
        return (await self._read(kind, body))[1]

    async def _read(self, kind: str, body: bytes) -> Frame:
        worker = self._small if len(body) <= SMALL_BYTES else self._large
        head, data = await worker.ask(kind, body)
        if "error" in head:
            raise ApiError(**head["error"])
        return head, data


class _PromptWorker:
    """A process with bounds of time."""

    def __init__(self, settings: Path, cpu_s: float, *, yields: bool, idle_s: float | None) -> None:
        self._cpu_s, self._wall_s = cpu_s, _WALL_FACTOR * cpu_s
        module = "qserve.engines.transformers.worker.prompts.process"
        arguments = (str(settings), str(cpu_s))
        self.process = FramedProcess(module, *arguments, yields=yields, idle_s=idle_s, wall_s=self._wall_s)

    async def ask(self, kind: str, body: bytes) -> Frame:
        try:
            head, data = await self.process.ask(lambda _: ({"what": kind}, body))
        except TimeoutError:
            raise self._too_slow(self._wall_s) from None
        except (OSError, EOFError) as error:
            if isinstance(error, ProcessEnded) and error.status == -signal.SIGXCPU:
                raise self._too_slow(self._cpu_s) from None
            # Where the whole worker is being ended its children may go first, and this request is not to blame.
            await asyncio.sleep(_LAST_MOMENTS_S)
            message = "the process that reads prompts ended on this request; its template needs too much memory"
            raise ApiError(400, message, "prompt_too_large") from None
        return head, data

    @staticmethod
    def _too_slow(limit_s: float) -> ApiError:
        message = f"the chat template and the tokenizer did not end within {limit_s:g} s for this request"
        return ApiError(400, message, "prompt_too_slow")
