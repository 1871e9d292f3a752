"""Messages between two processes that trust each other, over a stream socket: a line of JSON each.

    ["name", …]           a notification
    ["?", id, "name", …]  a request
    ["=", id, value]      its answer
    ["!", id, fields]     its ApiError

What is written within one turn of the event loop leaves in one write.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable
from typing import Any, cast

from qserve.wire.errors import ApiError

__all__ = ["Channel", "Hear"]

Hear = Callable[["Channel", int, str, list[Any]], None]
"""`hear(channel, id, name, arguments)`; `id` is 0 for a notification. A request is answered by `answer` or `refuse`."""

_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
# Unread messages beyond this: the other side is stuck, and its queue must not fill our memory.
_MOST_UNREAD_BYTES = 64 * 1024 * 1024


class Channel(asyncio.Protocol):
    """One end of a channel."""

    def __init__(self, hear: Hear, lost: Callable[[], None]) -> None:
        """`lost` is called when the other side is gone."""
        self._hear = hear
        self._lost = lost
        self._transport: asyncio.Transport | None = None
        self._unsent: list[str] = []
        self._rest = b""
        self._ids = itertools.count(1)
        self._awaited: dict[int, asyncio.Future[Any]] = {}

    def notify(self, *message: Any) -> None:
        """Send a notification, its name first."""
        if not self._unsent:
            asyncio.get_running_loop().call_soon(self._flush)
        self._unsent.append(_encode(message))

    def send_request(self, *message: Any) -> tuple[int, asyncio.Future[Any]]:
        """Send a request; returns its id and a future of the answer, which may raise ApiError."""
        number, answer = next(self._ids), asyncio.get_running_loop().create_future()
        self._awaited[number] = answer
        self.notify("?", number, *message)
        return number, answer

    async def request(self, *message: Any) -> Any:
        """Send a request and wait for its answer. Raises ApiError, or ConnectionError if the other side is gone."""
        number, answer = self.send_request(*message)
        try:
            return await answer
        finally:
            self.forget(number)

    def forget(self, number: int) -> None:
        """Drop the answer of this request when it comes."""
        self._awaited.pop(number, None)

    def answer(self, number: int, value: Any) -> None:
        """Answer the request `number`."""
        self.notify("=", number, value)

    def refuse(self, number: int, error: ApiError) -> None:
        """Answer the request with an error."""
        self.notify("!", number, error.fields)

    def close(self) -> None:
        """Send pending messages and close."""
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def _flush(self) -> None:
        unsent, self._unsent = self._unsent, []
        if not unsent or self._transport is None or self._transport.is_closing():
            return
        unsent.append("")
        self._transport.write("\n".join(unsent).encode())
        if self._transport.get_write_buffer_size() > _MOST_UNREAD_BYTES:
            self._transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        awaited, self._awaited = self._awaited, {}
        for answer in awaited.values():
            if not answer.done():
                answer.set_exception(ConnectionError("the other process is gone"))
        self._lost()

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._take(json.loads(line))

    def _take(self, message: list[Any]) -> None:
        name = message[0]
        if name == "?":
            self._hear(self, message[1], message[2], message[3:])
        elif name in ("=", "!"):
            self._answered(message[1], message[2], is_error=name == "!")
        else:
            self._hear(self, 0, name, message[1:])

    def _answered(self, number: int, value: Any, *, is_error: bool) -> None:
        answer = self._awaited.pop(number, None)
        if answer is None or answer.done():
            return
        if is_error:
            answer.set_exception(ApiError(**value))
        else:
            answer.set_result(value)
