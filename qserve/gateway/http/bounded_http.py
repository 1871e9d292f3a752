"""uvicorn's HTTP/1.1 protocol with bounds on the request head: its size, its time, and log lines about it.

uvicorn bounds neither the number of headers nor their length nor how slowly they come: a client without a key could
fill the memory with them, or keep every descriptor for as long as it likes.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from typing import Any, cast
from urllib.parse import unquote

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from qserve.gateway.http.answering import Answering
from qserve.gateway.http.connections import Connections
from qserve.gateway.http.refused_log import RefusedLog
from qserve.gateway.routes import dialect_of
from qserve.wire.errors import ApiError, Dialect

__all__ = ["ANSWERING", "CONNECTION", "HEAD_TIMEOUT_S", "MAX_HEAD_BYTES", "BoundedHttp"]

# Request line and headers. Browsers and proxies send a few kB; nginx allows 32 kB, uvicorn's other parser 64 kB.
MAX_HEAD_BYTES = 64 * 1024
# From the connection, or from the first byte of a later head, to the empty line; nginx allows 60 s, Apache 20 s.
HEAD_TIMEOUT_S = 15.0
# In a request's scope: the connection that it came over.
CONNECTION = "qserve.connection"
# And its `Answering`, until `RequestContext` takes it out: the two would hold each other.
ANSWERING = "qserve.answering"
_LINGER_S = 2.0
_REASONS = {400: b"Bad Request", 408: b"Request Timeout", 431: b"Request Header Fields Too Large"}


class _HeadTooLong(Exception):
    """Stops the parser, which turns it into an error of its own."""


class BoundedHttp(HttpToolsProtocol):
    """One connection. Beyond a bound it answers 408 or 431 and closes."""

    _num_head_bytes = 0  # of this request, as the parser has handed them out
    _num_unparsed_bytes = 0  # that came after the piece in which it began, while its head is not complete
    _num_begun = 0  # requests on this connection
    _is_in_head = False
    _is_refused = False
    _peer = ""
    _timer: asyncio.TimerHandle | None = None
    _is_lost = False
    _on_lost: Callable[[], None] | None = None

    def __init__(self, *arguments: Any, connections: Connections, refused: RefusedLog, **named: Any) -> None:
        """uvicorn's arguments, and the state that all connections of a server share."""
        super().__init__(*arguments, **named)
        self._connections_of_server = connections
        self._refused_log = refused

    @property
    def is_trusted(self) -> bool:
        """Whether a request on it was accepted, and no wrong key was sent since."""
        return self._connections_of_server.is_trusted(self)

    def trust(self) -> None:
        """A request on it was accepted."""
        self._connections_of_server.trust(self)

    def distrust(self) -> None:
        """A wrong key was sent over it."""
        self._connections_of_server.distrust(self, self._peer)

    def when_lost(self, callback: Callable[[], None] | None) -> bool:
        """Calls `callback` when the client closes the connection (None: no callback). False if it is closed already."""
        self._on_lost = callback
        if callback is not None and self.flow.read_paused:
            self.flow.resume_reading()  # a client's end is not seen while nothing is read; a large body paused it
        return not self._is_lost

    def close_now(self) -> None:
        """Closes without an answer: its descriptor is needed."""
        self._refused_log.refused(self._peer, "more connections than descriptors; an idle one was closed")
        self.transport.abort()

    # asyncio.Protocol

    def connection_made(  # type: ignore[override]
        self, transport: asyncio.Transport
    ) -> None:
        super().connection_made(transport)
        self._peer = self.client[0] if self.client else ""
        self._connections_of_server.add(self, self._peer)
        self._limit_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._connections_of_server.remove(self)
        super().connection_lost(exc)
        self._is_lost = True
        if self._on_lost is not None:
            self._on_lost()

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        was_in_head, num_begun = self._is_in_head, self._num_begun
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # no other protocols are supported: it is answered as a plain request
        except httptools.HttpParserError:
            self._refuse(_too_long() if self._num_head_bytes > MAX_HEAD_BYTES else _no_http())
        if self._is_refused or self.transport.is_closing() or not self._is_in_head:
            return
        if self._timer is None:
            self._limit_head()
        if was_in_head and num_begun == self._num_begun:
            self._num_unparsed_bytes += len(data)  # one endless header is handed out when it ends, if ever
            if self._num_unparsed_bytes > MAX_HEAD_BYTES:
                self._refuse(_too_long())

    # httptools

    def on_message_begin(self) -> None:
        super().on_message_begin()
        cast("dict[str, Any]", self.scope)[CONNECTION] = self
        self._is_in_head = True
        self._num_begun += 1
        self._num_head_bytes = self._num_unparsed_bytes = 0

    def on_url(self, url: bytes) -> None:
        self._num_head_bytes += len(url)
        if self._num_head_bytes > MAX_HEAD_BYTES:
            raise _HeadTooLong
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._num_head_bytes += len(name) + len(value)
        if self._num_head_bytes > MAX_HEAD_BYTES:
            raise _HeadTooLong
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        self._stop_timer()
        self._connections_of_server.answers(self)
        before, answering = self.cycle, self._answering()
        self.cycle = answering
        if before is None or before.response_complete:
            task = self.loop.create_task(answering.run_asgi(self.app))  # as uvicorn from 0.34 on does
            task.add_done_callback(self.tasks.discard)
            self.tasks.add(task)
        else:  # a pipelined request waits for the answer before
            self.flow.pause_reading()
            self.pipeline.appendleft((answering, self.app))

    def _answering(self) -> Answering:
        """The request whose head has come, as uvicorn makes its own, less the protocols that are off here."""
        version, scope = self.parser.get_http_version(), cast("dict[str, Any]", self.scope)
        url = httptools.parse_url(self.url)
        path = url.path.decode("ascii")
        scope.update(
            method=self.parser.get_method().decode("ascii"),
            http_version=version,
            raw_path=url.path,
            path=unquote(path) if "%" in path else path,
            query_string=url.query or b"",
        )
        scope[ANSWERING] = answering = Answering(
            scope=self.scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=False,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=self.expect_100_continue,
            keep_alive=version != "1.0"
            and not self._connections_of_server.is_leaving
            and self.parser.should_keep_alive(),
            on_response=self.on_response_complete,
        )
        return answering

    def on_message_complete(self) -> None:
        super().on_message_complete()
        if self.cycle.response_complete:  # it was answered before its body had come
            self._stop_timer()

    def on_response_complete(self) -> None:
        has_next, is_body_open = bool(self.pipeline), self.cycle.more_body
        super().on_response_complete()
        if self.transport.is_closing() or has_next:
            return
        self._connections_of_server.rests(self)
        if is_body_open and not self.pipeline:
            self._limit_head()  # the rest of a body that nobody reads may take as long as a head

    def _limit_head(self) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(HEAD_TIMEOUT_S, self._on_timer)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timer(self) -> None:
        self._timer = None
        if self._is_refused or self.transport.is_closing():
            return
        if self._is_in_head:
            self._refuse(_too_slow())
        else:
            self.transport.close()  # it sent nothing, or is sending what was refused

    def _refuse(self, error: ApiError) -> None:
        path = getattr(self, "url", b"").partition(b"?")[0].decode("latin-1")  # b"" before the first request
        dialect = dialect_of("unmatched", path=path)
        body = error.body(dialect)
        self._is_refused = True
        self._stop_timer()
        self._refused_log.refused(self._peer, error.message)
        head = b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n%b\r\n"
        name = b"request-id: req-%b\r\n" % uuid.uuid4().hex[:12].encode() if dialect is Dialect.ANTHROPIC else b""
        self.transport.write(head % (error.status, _REASONS[error.status], len(body), name) + body)
        # Closed at once, what the client still sends would reset the connection, and its answer would be lost.
        self.transport.write_eof()
        self.loop.call_later(_LINGER_S, self.transport.abort)


def _no_http() -> ApiError:
    return ApiError(400, "the request is not HTTP", "invalid_http")


def _too_long() -> ApiError:
    return ApiError(431, f"request line and headers are longer than {MAX_HEAD_BYTES // 1024} KiB", "headers_too_large")


def _too_slow() -> ApiError:
    return ApiError(408, f"request line and headers took longer than {HEAD_TIMEOUT_S:g} s", "head_timeout")
