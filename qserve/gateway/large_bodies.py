"""Checking large bodies in processes of their own, so that nobody else's stream waits for it.

A megabyte of token ids or messages takes a tenth of a second to check, nested nonsense nearly one, in one call that
holds the interpreter: a thread would stop the event loop all the same. There is a process for each of `_LANES`, so
that a body of 200 kB never waits for one of 16 MB. It starts with the first such body, ends a minute after the last
one, and with its standard input, however the gateway ends.

One frame each way: its length, a JSON head, and the bytes that the head announces. A body is sent once, whatever is
asked about it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import struct
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

from qserve.engine.base import UnixAddress, WorkerEndpoint
from qserve.gateway.routes import ROUTES, RelayedRoute
from qserve.gateway.services import CheckedRequest, Service
from qserve.units import MIB
from qserve.wire.engine_fields import EngineFields, fields_of
from qserve.wire.errors import ApiError
from qserve.wire.first_look import first_look

__all__ = ["LARGE_BYTES", "LargeBodies", "LargeBody", "main"]

# What is shorter is checked at once: some ten milliseconds at most.
LARGE_BYTES = 128 * 1024
# Up to so many bytes each; the last takes whatever is longer.
_LANES = (MIB, 4 * MIB, sys.maxsize)
_IDLE_S = 60.0
_LENGTHS = struct.Struct("!II")
# The processes compute while streams are relayed, perhaps on the same core.
_NICE = 5


class LargeBody:
    """One body whose turn it is."""

    def __init__(self, lane: _Lane, body: bytes) -> None:
        self._lane = lane
        self._body = body

    async def model(self) -> str | None:
        """The model that it names. Raises ApiError 400 if it is no JSON object."""
        answer = await self._ask({"what": "model"})
        return answer["model"] if isinstance(answer["model"], str) else None

    async def read(self, route: RelayedRoute, service: Service, endpoint: WorkerEndpoint) -> CheckedRequest:
        """What `service.reader` says of it, its ApiError too."""
        head: dict[str, Any] = {
            "what": "read", "method": route.method, "path": route.path, "service": route.services.index(service),
            "worker": endpoint.name, "models": endpoint.models, "engine": endpoint.engine,
            "limits": asdict(endpoint.context),
        }  # fmt: skip
        answer = await self._ask(head, endpoint.request_fields)
        return CheckedRequest(answer["model"], answer["num_sequences"])

    async def _ask(self, head: dict[str, Any], fields: EngineFields | None = None) -> dict[str, Any]:
        # A frame that was begun is ended, whoever gave up waiting for it: the next one would not be understood.
        answer = await asyncio.shield(asyncio.ensure_future(self._lane.ask(head, self._body, fields)))
        if "error" in answer:
            raise ApiError(**answer["error"])
        return answer


class LargeBodies:
    """The lanes, each first come, first served."""

    def __init__(self) -> None:
        self._lanes = tuple(_Lane() for _ in _LANES)

    @asynccontextmanager
    async def turn_of(self, body: bytes) -> AsyncIterator[LargeBody]:
        """Waits until this body may be asked about, and holds its lane."""
        lane = next(lane for lane, longest in zip(self._lanes, _LANES, strict=True) if len(body) <= longest)
        async with lane.turn:
            yield LargeBody(lane, body)

    async def close(self) -> None:
        """Ends the processes, where there are any."""
        for lane in self._lanes:
            await lane.close()


class _Lane:
    """One process. `turn` is held by the body that is asked about."""

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self._frame = asyncio.Lock()  # held until an answer has come, although its asker is gone
        self._process: asyncio.subprocess.Process | None = None
        self._told: dict[str, EngineFields] = {}  # what the process knows, by worker
        self._held: bytes | None = None  # the body that the process has
        self._idle_timer: asyncio.TimerHandle | None = None

    async def ask(self, head: dict[str, Any], body: bytes, fields: EngineFields | None) -> dict[str, Any]:
        """One frame there and one back."""
        async with self._frame:
            process = await self._running()
            self._end_when_idle()
            if fields is not None and self._told.get(head["worker"]) is not fields:
                head["document"] = fields.document
                self._told[head["worker"]] = fields
            head["again"] = again = self._held is body
            assert process.stdin is not None and process.stdout is not None
            try:
                process.stdin.writelines(_frame(head, b"" if again else body))
                self._held = body
                await process.stdin.drain()
                head_length, _ = _LENGTHS.unpack(await process.stdout.readexactly(_LENGTHS.size))
                answer: dict[str, Any] = json.loads(await process.stdout.readexactly(head_length))
            except (OSError, EOFError):
                await self.close()
                raise
            if head["what"] == "read":
                self._held = None
            return answer

    async def close(self) -> None:
        """Ends the process, if there is one."""
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    def _end_when_idle(self) -> None:
        """It keeps the memory of the largest body that it saw."""
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        self._idle_timer = asyncio.get_running_loop().call_later(_IDLE_S, self._end_if_idle)

    def _end_if_idle(self) -> None:
        if self._frame.locked() or self.turn.locked():
            self._end_when_idle()
        elif self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            self._process = self._held = None

    async def _running(self) -> asyncio.subprocess.Process:
        if self._process is None or self._process.returncode is not None:
            self._told = {}
            self._held = None
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", __name__, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
                start_new_session=True,
            )  # fmt: skip
        return self._process


def main(source: BinaryIO, sink: BinaryIO) -> None:
    """The process: a frame in, a frame out, until there are no more."""
    os.nice(_NICE)
    known: dict[str, EngineFields] = {}
    held = b""
    while lengths := source.read(_LENGTHS.size):
        head_length, body_length = _LENGTHS.unpack(lengths)
        head = json.loads(source.read(head_length))
        body = source.read(body_length)
        held = held if head["again"] else body
        if "document" in head:
            known[head["worker"]] = fields_of(head["document"])
        try:
            answer = _answer(head, held, known.get(head.get("worker", "")))
        except ApiError as error:
            names = ("status", "message", "code", "param", "retry_after_s")
            answer = {"error": {name: getattr(error, name) for name in names}}
        sink.writelines(_frame(answer, b""))
        sink.flush()


def _answer(head: dict[str, Any], body: bytes, fields: EngineFields | None) -> dict[str, Any]:
    if head["what"] == "model":
        return {"model": first_look(body).model}
    wanted = (head["method"], head["path"])
    route = next(one for one in ROUTES if isinstance(one, RelayedRoute) and (one.method, one.path) == wanted)
    reader = route.services[head["service"]].reader
    assert reader is not None, "a route without a body has no large one"
    endpoint = WorkerEndpoint(
        head["worker"], tuple(head["models"]), UnixAddress(Path()), "", 1, engine=head["engine"],
        request_fields=fields, **head["limits"],
    )  # fmt: skip
    first_look(body, reader.known_names(route.path, endpoint))
    checked = reader.read(body, route.path, endpoint)
    return {"model": checked.model, "num_sequences": checked.num_sequences}


def _frame(head: dict[str, Any], body: bytes) -> tuple[bytes, bytes, bytes]:
    encoded = json.dumps(head).encode()
    return _LENGTHS.pack(len(encoded), len(body)), encoded, body


if __name__ == "__main__":
    main(sys.stdin.buffer, sys.stdout.buffer)
