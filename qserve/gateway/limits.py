"""Bounds on requests: content type, length, arrival time, disconnects of clients."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol, Self

from starlette.types import Message, Receive, Scope

from qserve.units import format_bytes
from qserve.wire.body_scan import check_encoding
from qserve.wire.errors import ApiError

__all__ = [
    "BodyHead",
    "ClientGone",
    "ConnectedReceive",
    "arrival_deadline_s",
    "check_head",
    "read_body",
    "read_checked_body",
    "stopped_arriving",
]

# Lowest rate of a body after the first timeout: its memory is held until it is complete. Apache: 500.
_MIN_BYTES_PER_S = 1024
_OF_BODY = frozenset({b"content-type", b"content-encoding", b"content-length", b"transfer-encoding"})


class ClientGone(Exception):
    """The client closed the connection."""


class BodyHead(NamedTuple):
    """What the headers of a request say of its body.

    Attributes:
        content_type: the first one, with its parameters; b"" if there is none.
        encoding: of the content, all of them; b"" if there is none.
        num_bytes: Content-Length; 0 if absent.
        is_chunked: it has no length that is known before.
    """

    content_type: bytes
    encoding: bytes
    num_bytes: int
    is_chunked: bool

    @classmethod
    def of(cls, scope: Scope) -> Self:
        given: dict[bytes, list[bytes]] = {}
        for name, value in scope["headers"]:
            if name in _OF_BODY:
                given.setdefault(name, []).append(value)
        return cls(
            given[b"content-type"][0] if b"content-type" in given else b"",
            b", ".join(given.get(b"content-encoding", ())),
            next((int(value) for value in given.get(b"content-length", ()) if value.isdigit()), 0),
            b"transfer-encoding" in given,
        )

    def require_json(self) -> None:
        """415 unless the body is declared as JSON.

        Browsers let a web page post forms and plain text anywhere without asking; JSON they ask for first.
        """
        if self.content_type.partition(b";")[0].strip().lower() != b"application/json":
            raise ApiError(415, "the body must be JSON; send the header Content-Type: application/json", "not_json")

    def require_plain(self) -> None:
        """415 for a compressed body."""
        if self.encoding:
            check_encoding(self.encoding.decode("latin-1"))


async def read_body(scope: Scope, receive: Receive, max_bytes: int, idle_timeout_s: float) -> bytes:
    """The whole request body; 413 as soon as it is known to be too long, whether its length was declared or not.

    408 where nothing arrives for `idle_timeout_s`, or so little that it would never end.
    """
    check_head(scope, max_bytes)
    return await read_checked_body(receive, max_bytes, idle_timeout_s)


def check_head(scope: Scope, max_bytes: int, *, is_json: bool = False) -> BodyHead:
    """415 for a body that is compressed, or not JSON where `is_json`; 413 if it is declared to be too long."""
    head = BodyHead.of(scope)
    if is_json:
        head.require_json()
    head.require_plain()
    if head.num_bytes > max_bytes:
        raise _too_large(max_bytes)
    return head


async def read_checked_body(receive: Receive, max_bytes: int, idle_timeout_s: float) -> bytes:
    """As `read_body`, after `check_head`."""
    body = receive.take_body() if isinstance(receive, ConnectedReceive) else None
    if body is not None:
        if len(body) > max_bytes:
            raise _too_large(max_bytes)
        return body
    parts: list[bytes] = []
    num_bytes = 0
    try:
        async with asyncio.timeout(idle_timeout_s) as deadline:
            first_deadline_s = asyncio.get_running_loop().time() + idle_timeout_s
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone
                part = message.get("body", b"")
                num_bytes += len(part)
                if num_bytes > max_bytes:
                    raise _too_large(max_bytes)
                parts.append(part)
                if not message.get("more_body", False):
                    return parts[0] if len(parts) == 1 else b"".join(parts)
                deadline.reschedule(arrival_deadline_s(first_deadline_s, num_bytes, idle_timeout_s))
    except TimeoutError:
        raise stopped_arriving(idle_timeout_s) from None


def arrival_deadline_s(first_deadline_s: float, num_bytes: int, idle_timeout_s: float) -> float:
    """When more must have come of a body of which `num_bytes` have, on the clock of the event loop."""
    idle_deadline_s = asyncio.get_running_loop().time() + idle_timeout_s
    return min(idle_deadline_s, first_deadline_s + num_bytes / _MIN_BYTES_PER_S)


def stopped_arriving(idle_timeout_s: float) -> ApiError:
    """The 408 for a body that arrives too slowly."""
    why = f"the body stopped arriving: nothing for {idle_timeout_s:g} s, or less than 1 KiB a second"
    return ApiError(408, why, "body_timeout")


def _too_large(max_bytes: int) -> ApiError:
    return ApiError(
        413, f"the body is longer than {format_bytes(max_bytes)}; send less or raise --max-body-mib", "body_too_large"
    )


class ConnectedReceive:
    """ASGI's `receive` with its connection, which reports a disconnect without polling."""

    __slots__ = ("_arriving", "_receive", "connection")

    def __init__(self, receive: Receive, connection: ClientConnection, arriving: Arriving | None = None) -> None:
        """`arriving`: the request, of which `receive` is."""
        self._receive = receive
        self._arriving = arriving
        self.connection = connection

    def take_body(self) -> bytes | None:
        """The whole body, where it has come before the first message was received; else None."""
        return None if self._arriving is None else self._arriving.take_body()

    def __call__(self) -> Awaitable[Message]:
        return self._receive()


class ClientConnection(Protocol):
    """A connection of our own server."""

    def when_lost(self, callback: Callable[[], None] | None) -> bool:
        """Calls `callback` when the client closes the connection; None: nobody. False where it is closed already."""


class Arriving(Protocol):
    """A request on such a connection."""

    def take_body(self) -> bytes | None:
        """The whole body, where it has come and nothing of it was received; else None."""
