"""Checks large bodies in separate processes, so that no stream waits for it.

A megabyte of token ids or messages takes a tenth of a second to check, nested nonsense nearly one, in one call that
holds the interpreter: a thread would stop the event loop all the same. There is a process for each of `_LANES`, so
that a body of 200 kB never waits for one of 16 MB. It starts with the first such body, ends a minute after the last
one, and with its standard input, however the gateway ends. It is asked as `qserve.worker.framed_process` says; a body
is sent once, whatever is asked about it.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from typing import Any, BinaryIO

from qserve.gateway.routes import ROUTES, RelayedRoute
from qserve.units import MIB
from qserve.wire.body_scan import scan_body
from qserve.wire.errors import ApiError
from qserve.worker.base import WorkerFacts
from qserve.worker.framed_process import FramedProcess, frames, send_frame
from qserve.worker.wire import CheckedRequest

__all__ = ["LARGE_BYTES", "LargeBodies", "LargeBody", "main"]

# What is shorter is checked at once: some ten milliseconds at most.
LARGE_BYTES = 128 * 1024
# Up to so many bytes each; the last takes whatever is longer.
_LANES = (MIB, 4 * MIB, sys.maxsize)
_IDLE_S = 60.0


class LargeBody:
    """The body that its lane is checking."""

    def __init__(self, lane: _Lane, body: bytes) -> None:
        self._lane = lane
        self._body = body

    async def model(self) -> str | None:
        """The model named in the body. Raises ApiError 400 if it is not a JSON object."""
        answer, _ = await self._ask({"what": "model"})
        return answer["model"] if isinstance(answer["model"], str) else None

    async def read(self, route: RelayedRoute, facts: WorkerFacts) -> CheckedRequest:
        """What the reader of the route makes of the body; raises its ApiError."""
        head = {"what": "read", "method": route.method, "path": route.path, "worker": facts.name}
        answer, changed = await self._ask(head, facts)
        return CheckedRequest(**{**answer, "body": changed or None})

    async def _ask(self, head: dict[str, Any], facts: WorkerFacts | None = None) -> tuple[dict[str, Any], bytes]:
        answer, data = await self._lane.ask(head, self._body, facts)
        if "error" in answer:
            raise ApiError(**answer["error"])
        return answer, data


class LargeBodies:
    """The lanes, each first come, first served."""

    def __init__(self) -> None:
        self._lanes = tuple(_Lane() for _ in _LANES)

    @asynccontextmanager
    async def turn_of(self, body: bytes) -> AsyncIterator[LargeBody]:
        """Waits for the lane of this body and holds it."""
        lane = next(lane for lane, longest in zip(self._lanes, _LANES, strict=True) if len(body) <= longest)
        async with lane.turn:
            yield LargeBody(lane, body)

    async def close(self) -> None:
        """Ends the processes, if any."""
        for lane in self._lanes:
            await lane.process.close()


class _Lane:
    """One process. `turn` is held by the body that is asked about."""

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self.process = FramedProcess(__name__, yields=True, idle_s=_IDLE_S)
        self._told: dict[str, WorkerFacts] = {}  # what the process knows, by worker
        self._held: bytes | None = None  # the body that the process has

    async def ask(self, head: dict[str, Any], body: bytes, facts: WorkerFacts | None) -> tuple[dict[str, Any], bytes]:
        """Sends one frame and receives one."""

        def compose(is_new: bool) -> tuple[dict[str, Any], bytes]:
            if is_new:
                self._told, self._held = {}, None
            if facts is not None and self._told.get(facts.name) is not facts:
                head["facts"] = {**facts.to_json(), "key": ""}  # the process asks no worker
                self._told[facts.name] = facts
            head["again"] = again = self._held is body
            self._held = None if head["what"] == "read" else body
            return head, b"" if again else body

        return await self.process.ask(compose)


def main(source: BinaryIO, sink: BinaryIO) -> None:
    """The process: answers each frame until its input ends."""
    known: dict[str, WorkerFacts] = {}
    held = b""
    for head, body in frames(source):
        held = held if head["again"] else body
        if "facts" in head:
            known[head["worker"]] = WorkerFacts.from_json(head["facts"])
        answer: dict[str, Any]
        changed: bytes | None = None
        try:
            if head["what"] == "model":
                answer = {"model": scan_body(held).model}
            else:
                answer, changed = _checked(head, held, known[head["worker"]])
        except ApiError as error:
            answer = {"error": error.fields}
        send_frame(sink, answer, [changed or b""])


def _checked(head: dict[str, Any], body: bytes, facts: WorkerFacts) -> tuple[dict[str, Any], bytes | None]:
    """The head of the answer, and the body for the worker if it was rewritten."""
    wanted = (head["method"], head["path"])
    route = next(one for one in ROUTES if isinstance(one, RelayedRoute) and (one.method, one.path) == wanted)
    served = route.served(facts)
    assert served is not None, "the gateway found its reader before"
    reader = served.reader
    scan_body(body, reader.known_names(route.path, facts))
    checked = reader.read(body, route.path, facts)
    return asdict(replace(checked, body=None)), checked.body


if __name__ == "__main__":
    main(sys.stdin.buffer, sys.stdout.buffer)
