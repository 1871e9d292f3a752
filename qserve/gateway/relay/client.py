"""A minimal HTTP/1.1 client for one worker, on httptools.

aiohttp's client did the same for about 0.15 ms of CPU a request more, and that is time to first token. What is left
out is what no worker does: redirects, cookies, compression, proxies, bodies that end with the connection.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterable
from typing import cast

import httptools

from qserve.gateway.bodies import Body
from qserve.worker.base import TcpAddress, UnixAddress

__all__ = ["ConnectionBroke", "Reply", "Unreachable", "WorkerClient"]

# Shorter than any server's own keep-alive (uvicorn: 5 s), so that a pooled connection is never closed under a request.
_POOL_IDLE_S = 2.0
# Back-pressure: a client that reads slowly stalls only its own stream.
_MAX_BUFFERED_BYTES = 256 * 1024


class Unreachable(Exception):
    """No connection to the worker."""


class ConnectionBroke(Exception):
    """The connection ended, or sent invalid HTTP, before the answer was complete."""


class Reply(asyncio.Protocol):
    """A connection to a worker, and the answer that comes over it: one at a time, the next one after `reset`."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._progress: asyncio.Future[None] | None = None
        self._broke = ""
        self._transport: asyncio.Transport | None = None
        self._unsent: Body | None = None
        self._is_writing_paused = False
        self.reset()

    def reset(self) -> None:
        """Prepares for the next answer."""
        self.status = 0
        self.content_type = b""
        """Without parameters."""
        self.headers: dict[bytes, bytes] = {}
        self._parts: list[bytes] = []
        self._num_buffered_bytes = 0
        self._paused = False
        self._complete = False
        self._kept_alive = False

    @property
    def is_reusable(self) -> bool:
        """Whether the answer is complete and the worker keeps the connection open."""
        return self._kept_alive and not self._paused and not self._broke

    @property
    def is_open(self) -> bool:
        return not self._broke

    def send(self, head: bytes, body: Body | None) -> None:
        """Writes a whole request, and drops its body when the worker has taken (nearly) all of it."""
        self._unsent = body
        if self._transport is not None:
            self._transport.write(head if body is None else head + body.data)
        if not self._is_writing_paused:
            self._drop_sent()

    def close(self) -> None:
        """Closes at once; unsent data is dropped."""
        self._broke = self._broke or "closed by the gateway"
        if self._transport is not None:
            self._transport.abort()

    async def start(self) -> None:
        """Waits for status and headers."""
        while not self.status:
            await self._wait()

    async def read_some(self) -> bytes:
        """All of the body that has come and was not read yet, at least one byte; b"" at the end."""
        while not self._parts:
            if self._complete:
                return b""
            await self._wait()
        parts = self._parts
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        self._parts = []
        self._num_buffered_bytes = 0
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        return data

    async def read(self) -> bytes:
        """The rest of the body."""
        parts = []
        while part := await self.read_some():
            parts.append(part)
        return b"".join(parts)

    async def _wait(self) -> None:
        if self._broke:
            raise ConnectionBroke(self._broke)
        self._progress = asyncio.get_running_loop().create_future()
        try:
            await self._progress
        finally:
            self._progress = None

    def _drop_sent(self) -> None:
        body, self._unsent = self._unsent, None
        if body is not None:
            body.drop()

    def _wake(self) -> None:
        if self._progress is not None and not self._progress.done():
            self._progress.set_result(None)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._broke = self._broke or (str(exc) if exc else "the worker closed the connection")
        self._wake()

    def pause_writing(self) -> None:
        self._is_writing_paused = True

    def resume_writing(self) -> None:
        self._is_writing_paused = False
        self._drop_sent()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._broke = f"the worker's answer is not HTTP: {error}"
            self.close()
        if self._num_buffered_bytes > _MAX_BUFFERED_BYTES and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    # httptools

    def on_message_begin(self) -> None:
        if self._complete:  # unrequested: it would be taken for the next request's answer
            self._broke = "the worker sent data before it was asked"

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        self.content_type = self.headers.get(b"content-type", b"").partition(b";")[0].strip().lower()

    def on_body(self, body: bytes) -> None:
        self._parts.append(body)
        self._num_buffered_bytes += len(body)

    def on_message_complete(self) -> None:
        self._complete = True
        self._kept_alive = self._parser.should_keep_alive()  # the parser forgets it right after


class _Request:
    """One request and its connection."""

    __slots__ = ("_body", "_client", "_head", "_reply")

    def __init__(self, client: WorkerClient, head: bytes, body: Body | None) -> None:
        self._client = client
        self._head = head
        self._body = body

    async def __aenter__(self) -> Reply:
        self._reply = reply = await self._client.connection()
        try:
            reply.send(self._head, self._body)
            await reply.start()
        except BaseException:
            self._client.release(reply)
            raise
        return reply

    async def __aexit__(self, *_: object) -> None:
        self._client.release(self._reply)


class WorkerClient:
    """A pool of connections to one worker. Needs no closing order: `close` drops whatever is idle."""

    def __init__(self, address: UnixAddress | TcpAddress, key: str, connect_timeout_s: float) -> None:
        self.address = address
        self._connect_timeout_s = connect_timeout_s
        self._idle: deque[tuple[float, Reply]] = deque()
        host = "worker" if isinstance(address, UnixAddress) else f"{address.host}:{address.port}"
        self._fixed = f"host: {host}\r\nauthorization: Bearer {key}\r\naccept-encoding: identity\r\n"

    def request(
        self,
        method: str,
        path: str,
        request_id: str,
        body: Body | None = None,
        headers: Iterable[tuple[str, str]] = (),
        content_type: str = "application/json",
    ) -> _Request:
        """`async with` sends a request and has the answer from its headers on. Leaving early closes the connection.

        `body` is dropped as soon as it is written: it may be megabytes, and the answer may take minutes.
        `headers` and `content_type` are sent as they are: what comes from a client must have been checked.
        Raises Unreachable when there is none, ConnectionBroke when it ends too soon, here or in `read_some`.
        """
        head = f"{method} {path} HTTP/1.1\r\n{self._fixed}x-request-id: {request_id}\r\n"
        for name, value in headers:
            head += f"{name}: {value}\r\n"
        if body is not None and body.data:
            head += f"content-type: {content_type}\r\ncontent-length: {len(body.data)}\r\n"
        return _Request(self, head.encode() + b"\r\n", body)

    def close(self) -> None:
        """Closes the idle connections."""
        while self._idle:
            self._idle.pop()[1].close()

    async def connection(self) -> Reply:
        """An idle connection or a new one, for one request; goes back by `release`."""
        while self._idle:
            since_s, reply = self._idle.pop()
            if reply.is_open and time.monotonic() - since_s < _POOL_IDLE_S:
                reply.reset()
                return reply
            reply.close()
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                if isinstance(self.address, UnixAddress):
                    return (await loop.create_unix_connection(Reply, str(self.address.path)))[1]
                return (await loop.create_connection(Reply, self.address.host, self.address.port))[1]
        except OSError as error:  # TimeoutError is one
            raise Unreachable(error.strerror or "no answer in time") from error

    def release(self, reply: Reply) -> None:
        """Keeps the connection for the next request, or closes it where it can't have one."""
        if not reply.is_reusable:
            reply.close()
            return
        now_s = time.monotonic()
        self._idle.append((now_s, reply))
        while now_s - self._idle[0][0] > _POOL_IDLE_S:
            self._idle.popleft()[1].close()
