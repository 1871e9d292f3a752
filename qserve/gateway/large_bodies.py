"""Checking large bodies in a process of its own, so that nobody else's stream waits for it.

A megabyte of token ids or messages takes a tenth of a second to check, nested nonsense nearly one, in one call that
holds the interpreter: a thread would stop the event loop all the same. The process starts with the first such body,
ends a minute after the last one, and with its standard input, however the gateway ends.

One frame each way: its length, a JSON head, and the bytes that the head announces.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import struct
import sys
from pathlib import Path
from typing import Any, BinaryIO

from qserve.engine.base import UnixAddress, WorkerEndpoint
from qserve.gateway.routes import ROUTES, RelayedRoute
from qserve.gateway.services import Asked, Service
from qserve.wire import vllm
from qserve.wire.engine_fields import EngineFields, fields_of
from qserve.wire.errors import ApiError

__all__ = ["LARGE_BYTES", "LargeBodies", "main"]

# What is shorter is checked at once: some ten milliseconds at most.
LARGE_BYTES = 128 * 1024
_IDLE_S = 60.0
_LENGTHS = struct.Struct("!II")


class LargeBodies:
    """The process and its one queue, first come, first served."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()
        self._told: dict[str, EngineFields] = {}  # what the process knows, by worker
        self._idle_timer: asyncio.TimerHandle | None = None

    async def model(self, body: bytes) -> str | None:
        """The model that a body names. Raises ApiError 400 if it is no JSON object."""
        answer = await self._ask({"what": "model"}, body)
        return answer["model"] if isinstance(answer["model"], str) else None

    async def read(self, route: RelayedRoute, service: Service, body: bytes, endpoint: WorkerEndpoint) -> Asked:
        """What `service.reader` says of the body, its ApiError too."""
        head: dict[str, Any] = {
            "what": "read", "method": route.method, "path": route.path, "service": route.services.index(service),
            "worker": endpoint.name, "models": endpoint.models, "engine": endpoint.engine,
        }  # fmt: skip
        answer = await self._ask(head, body, endpoint.request_fields)
        return Asked(answer["model"], answer["num_sequences"])

    async def close(self) -> None:
        """Ends the process, if there is one."""
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _ask(self, head: dict[str, Any], body: bytes, fields: EngineFields | None = None) -> dict[str, Any]:
        # A frame that was begun is ended, whoever gave up waiting for it: the next one would not be understood.
        answer = await asyncio.shield(asyncio.ensure_future(self._in_turn(head, body, fields)))
        if "error" in answer:
            raise ApiError(**answer["error"])
        return answer

    async def _in_turn(self, head: dict[str, Any], body: bytes, fields: EngineFields | None) -> dict[str, Any]:
        async with self._turn:
            process = await self._running()
            self._end_when_idle()
            if fields is not None and self._told.get(head["worker"]) is not fields:
                head["document"] = fields.document
                self._told[head["worker"]] = fields
            assert process.stdin is not None and process.stdout is not None
            try:
                process.stdin.writelines(_frame(head, body))
                await process.stdin.drain()
                head_length, _ = _LENGTHS.unpack(await process.stdout.readexactly(_LENGTHS.size))
                answer: dict[str, Any] = json.loads(await process.stdout.readexactly(head_length))
            except (OSError, EOFError):
                await self.close()
                raise
            return answer

    def _end_when_idle(self) -> None:
        """It keeps the memory of the largest body that it saw."""
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        self._idle_timer = asyncio.get_running_loop().call_later(_IDLE_S, self._end_if_idle)

    def _end_if_idle(self) -> None:
        if self._turn.locked():
            self._end_when_idle()
        elif self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            self._process = None

    async def _running(self) -> asyncio.subprocess.Process:
        if self._process is None or self._process.returncode is not None:
            self._told = {}
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", __name__, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
                start_new_session=True,
            )  # fmt: skip
        return self._process


def main(source: BinaryIO, sink: BinaryIO) -> None:
    """The process: a frame in, a frame out, until there are no more."""
    known: dict[str, EngineFields] = {}
    while lengths := source.read(_LENGTHS.size):
        head_length, body_length = _LENGTHS.unpack(lengths)
        head = json.loads(source.read(head_length))
        body = source.read(body_length)
        if "document" in head:
            known[head["worker"]] = fields_of(head["document"])
        try:
            answer = _answer(head, body, known.get(head.get("worker", "")))
        except ApiError as error:
            names = ("status", "message", "code", "param", "retry_after_s")
            answer = {"error": {name: getattr(error, name) for name in names}}
        sink.writelines(_frame(answer, b""))
        sink.flush()


def _answer(head: dict[str, Any], body: bytes, fields: EngineFields | None) -> dict[str, Any]:
    if head["what"] == "model":
        return {"model": vllm.read_body(body).get("model")}
    wanted = (head["method"], head["path"])
    route = next(one for one in ROUTES if isinstance(one, RelayedRoute) and (one.method, one.path) == wanted)
    reader = route.services[head["service"]].reader
    assert reader is not None, "a route without a body has no large one"
    endpoint = WorkerEndpoint(
        head["worker"], tuple(head["models"]), UnixAddress(Path()), "", 1, 1, engine=head["engine"],
        request_fields=fields,
    )  # fmt: skip
    asked = reader.read(body, route.path, endpoint)
    return {"model": asked.model, "num_sequences": asked.num_sequences}


def _frame(head: dict[str, Any], body: bytes) -> tuple[bytes, bytes, bytes]:
    encoded = json.dumps(head).encode()
    return _LENGTHS.pack(len(encoded), len(body)), encoded, body


if __name__ == "__main__":
    main(sys.stdin.buffer, sys.stdout.buffer)
