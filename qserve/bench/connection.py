"""HTTP/1.1 to the server under load, on httptools: arrivals are timed where bytes come in, before anything else runs.

The client of gateway/relay/client.py hands bytes to a task that waits for them, which here would be part of what is
measured; it also speaks to one worker of ours only, without TLS.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit

import httptools

from qserve.bench.answer import WholeAnswer
from qserve.errors import UsageError

__all__ = ["Address", "ConnectionBroke", "Pool", "Unreachable"]

_CONNECT_TIMEOUT_S = 30


class Unreachable(Exception):
    """No connection; the message is the system's reason."""


class ConnectionBroke(Exception):
    """The connection ended, or turned to nonsense, before the answer was complete."""


@dataclass(frozen=True)
class Address:
    """Where requests go: `prefix` stands before /v1."""

    host: str
    port: int
    is_tls: bool
    prefix: str

    @classmethod
    def of(cls, url: str) -> Address:
        """From a URL with or without /v1 at its end. Raises UsageError for what is none."""
        parts = urlsplit(url.rstrip("/").removesuffix("/v1"))
        try:
            port = parts.port or (443 if parts.scheme == "https" else 80)
        except ValueError:
            port = 0
        if parts.scheme not in ("http", "https") or not parts.hostname or not port:
            raise UsageError(f"--url {url} is not the address of a server; write it as http://127.0.0.1:8000")
        return cls(parts.hostname, port, parts.scheme == "https", parts.path.rstrip("/"))

    @property
    def url(self) -> str:
        """Without /v1."""
        return f"{'https' if self.is_tls else 'http'}://{self.netloc}{self.prefix}"

    @property
    def netloc(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.is_tls else 80) else f"{host}:{self.port}"


class Connection(asyncio.Protocol):
    """One keep-alive connection; one request at a time."""

    def __init__(self) -> None:
        self.is_open = False
        self.has_answered = False
        self._transport: asyncio.Transport | None = None
        self._done: asyncio.Future[None] | None = None
        self._broke = ""
        self._now_s = 0.0

    def ask(self, message: bytes, answer: WholeAnswer) -> asyncio.Future[None]:
        """Sends a whole request; the future is done with the last byte of the answer, or raises ConnectionBroke."""
        self._answer = answer
        self._content_type = b""
        self.has_answered = False
        self._parser = httptools.HttpResponseParser(self)
        self._done = asyncio.get_running_loop().create_future()
        assert self._transport is not None
        self._transport.write(message)
        return self._done

    def close(self) -> None:
        """At once."""
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()

    def _end(self, error: Exception | None) -> None:
        if self._done is not None and not self._done.done():
            if error is None:
                self._done.set_result(None)
            else:
                self._done.set_exception(error)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.is_open = True

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        self._end(ConnectionBroke(self._broke or (str(exc) if exc else "the server closed the connection")))

    def data_received(self, data: bytes) -> None:
        self._now_s = time.perf_counter()
        if self._done is None or self._done.done():  # nobody asked: what comes would be the next request's answer
            self.close()
            return
        self.has_answered = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._broke = f"what came back is not HTTP ({error})"
            self.close()

    # httptools

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"content-type":
            self._content_type = value

    def on_headers_complete(self) -> None:
        self._answer.status = self._parser.get_status_code()
        self._answer.content_type = self._content_type.decode("latin-1").lower()

    def on_body(self, body: bytes) -> None:
        self._answer.take(body, self._now_s)

    def on_message_complete(self) -> None:
        if self._answer.status < 200:  # 100 Continue and its like: the answer is still to come
            return
        keep = self._parser.should_keep_alive()
        self._end(None)
        if not keep:
            self.close()


class Pool:
    """Connections to one address, as many as requests run at once. `close` drops them."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._idle: list[Connection] = []
        self._peer = (address.host, address.port)
        self._tls = ssl.create_default_context() if address.is_tls else None

    async def ask(self, message: bytes, answer: Callable[[], WholeAnswer]) -> WholeAnswer:
        """The complete answer. Raises Unreachable, or ConnectionBroke with what of it came in `args[1]`."""
        while True:
            was_used = bool(self._idle)
            connection = await self._connection()
            taken = answer()
            try:
                await connection.ask(message, taken)
            except ConnectionBroke as error:
                if was_used and not connection.has_answered:
                    continue  # closed by the server while it lay idle: no fault of this request
                raise ConnectionBroke(str(error), taken) from None
            except BaseException:
                connection.close()
                raise
            if connection.is_open:
                self._idle.append(connection)
            return taken

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    async def _connection(self) -> Connection:
        while self._idle:
            if (connection := self._idle.pop()).is_open:
                return connection
        loop = asyncio.get_running_loop()
        server_hostname = self._address.host if self._tls else None
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                transport, connection = await loop.create_connection(
                    Connection, *self._peer, ssl=self._tls, server_hostname=server_hostname
                )
        except TimeoutError:
            raise Unreachable(f"no connection within {_CONNECT_TIMEOUT_S} s") from None
        except OSError as error:
            raise Unreachable(_reason(error)) from None
        self._peer = transport.get_extra_info("peername")[:2]  # the name is asked for once, not once a connection
        return connection


def _reason(error: OSError) -> str:
    """`Connection refused`, without the addresses that asyncio puts around it."""
    if isinstance(error, ssl.SSLError):
        return f"TLS: {getattr(error, 'verify_message', '') or error.reason or error}"
    words = (error.strerror or str(error)).removeprefix("Multiple exceptions: ")
    return "Connection refused" if "refused" in words or "Connect call failed" in words else words
