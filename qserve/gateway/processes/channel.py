"""Messages between two processes that trust each other, over a stream socket: a line of JSON each.

    ["name", …]           told; nothing comes back
    ["?", id, "name", …]  asked
    ["=", id, value]      the answer
    ["!", id, fields]     the ApiError in its place

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
"""`hear(channel, id, name, arguments)`; `id` is 0 of what is told. A question is answered by `answer` or `refuse`."""

_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
# Of messages that the other side does not read: it is stuck, and its queue must not fill our memory.
_MOST_UNREAD_BYTES = 64 * 1024 * 1024


class Channel(asyncio.Protocol):
    """One end."""

    def __init__(self, hear: Hear, lost: Callable[[], None]) -> None:
        """`lost` is called when the other side is gone."""
        self._hear = hear
        self._lost = lost
        self._transport: asyncio.Transport | None = None
        self._unsent: list[str] = []
        self._rest = b""
        self._ids = itertools.count(1)
        self._asked: dict[int, asyncio.Future[Any]] = {}

    def tell(self, *message: Any) -> None:
        """Say `message`, its name first."""
        if not self._unsent:
            asyncio.get_running_loop().call_soon(self._flush)
        self._unsent.append(_encode(message))

    def asking(self, *message: Any) -> tuple[int, asyncio.Future[Any]]:
        """Ask; the question's id, and the answer to come. The future raises ApiError where that is the answer."""
        number, answer = next(self._ids), asyncio.get_running_loop().create_future()
        self._asked[number] = answer
        self.tell("?", number, *message)
        return number, answer

    async def ask(self, *message: Any) -> Any:
        """Ask and wait. Raises ApiError where that is the answer, ConnectionError where the other side is gone."""
        number, answer = self.asking(*message)
        try:
            return await answer
        finally:
            self.forget(number)

    def forget(self, number: int) -> None:
        """Nobody waits for this answer any more."""
        self._asked.pop(number, None)

    def answer(self, number: int, value: Any) -> None:
        """What was asked under `number`."""
        self.tell("=", number, value)

    def refuse(self, number: int, error: ApiError) -> None:
        """An error in place of an answer."""
        self.tell("!", number, error.fields)

    def close(self) -> None:
        """Write what was said, and say no more."""
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
        asked, self._asked = self._asked, {}
        for answer in asked.values():
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
        answer = self._asked.pop(number, None)
        if answer is None or answer.done():
            return
        if is_error:
            answer.set_exception(ApiError(**value))
        else:
            answer.set_result(value)
