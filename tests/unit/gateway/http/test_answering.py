"""What a client's connection writes for an answer, and what a request's body is read by."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from qserve.gateway.auth import header
from qserve.gateway.http.bounded_http import ANSWERING, BoundedHttp
from qserve.gateway.http.connections import ConnectionLimits, Connections
from qserve.gateway.http.refused_log import RefusedLog
from qserve.gateway.limits import ConnectedReceive, read_body
from qserve.gateway.middleware import RequestContext
from qserve.gateway.run_history import RunHistory
from qserve.gateway.telemetry.metrics import GatewayMetrics
from qserve.wire.errors import ApiError

HEAD = b"POST /x HTTP/1.1\r\nhost: h\r\ncontent-length: 4\r\n"


class Transport(asyncio.Transport):
    """Keeps what is written, one item a call."""

    def __init__(self):
        super().__init__()
        self.written = []
        self.is_closed = False

    def get_extra_info(self, name, default=None):
        return ("127.0.0.1", 1) if name in ("peername", "sockname") else default

    def write(self, data):
        self.written.append(bytes(data))

    def close(self):
        self.is_closed = True

    def is_closing(self):
        return self.is_closed


async def _asked(app, *pieces):
    """The transport of a connection that sends these pieces to `app`."""
    config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off")
    connections = Connections(ConnectionLimits(8, 8))
    connection = BoundedHttp(
        config=config, server_state=ServerState(), app_state={}, connections=connections, refused=RefusedLog()
    )
    transport = Transport()
    connection.connection_made(transport)
    for piece in pieces:
        connection.data_received(piece)
        for _ in range(5):
            await asyncio.sleep(0)
    transport.was_closed = transport.is_closed
    connection.connection_lost(None)
    return transport


def _answering(messages):
    async def app(scope, receive, send):
        for message in messages:
            await send(message)

    return app


def _start(*headers, status=200):
    return {"type": "http.response.start", "status": status, "headers": list(headers)}


def _part(body, more=False):
    return {"type": "http.response.body", "body": body, "more_body": more}


async def test_the_head_of_an_answer_goes_out_with_its_body():
    app = _answering([_start((b"content-length", b"4")), _part(b"ab", True), _part(b"cd")])
    written = (await _asked(app, HEAD + b"\r\nbody")).written
    assert written == [b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nab", b"cd"]


async def test_the_head_of_a_stream_goes_out_at_once():
    written = (await _asked(_answering([_start(), _part(b"ab", True), _part(b"")]), HEAD + b"\r\nbody")).written
    assert written == [b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", b"2\r\nab\r\n", b"0\r\n\r\n"]


async def test_the_oldest_uvicorn_that_is_allowed_has_all_that_it_needs(monkeypatch):
    monkeypatch.delattr(HttpToolsProtocol, "_start_asgi_task", raising=False)  # 0.34 starts requests itself
    app = _answering([_start((b"content-length", b"4")), _part(b"abcd")])
    assert (await _asked(app, HEAD + b"\r\nbody")).written == [b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nabcd"]


async def test_a_request_that_is_over_is_held_by_nothing():
    """Else the collector has to find each one, and its connection."""
    answered = []

    async def app(scope, receive, send):
        answered.append(weakref.ref(receive._receive.__self__))
        await _answering([_start((b"content-length", b"0")), _part(b"")])(scope, receive, send)

    gc.disable()
    try:
        await _asked(RequestContext(app, GatewayMetrics(), None, RunHistory()), *[HEAD + b"\r\nbody"] * 2)
        assert len(answered) == 2 and answered[0]() is None
    finally:
        gc.enable()


async def test_an_answer_to_head_has_no_body():
    app = _answering([_start((b"content-length", b"4")), _part(b"abcd")])
    written = (await _asked(app, b"HEAD /x HTTP/1.1\r\nhost: h\r\n\r\n")).written
    assert written == [b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n"]


@pytest.mark.parametrize("head", [b"connection: close\r\n", b""])
async def test_a_connection_is_closed_where_the_client_says_so(head):
    app = _answering([_start((b"content-length", b"1")), _part(b"a")])
    transport = await _asked(app, HEAD + head + b"\r\nbody")
    assert transport.was_closed == bool(head) == (b"connection: close\r\n" in transport.written[0])


@pytest.mark.parametrize("header", [(b"x\r\ny", b"z"), (b"x", b"y\r\nz: a")])
async def test_no_header_holds_another(header):
    transport = await _asked(_answering([_start(header), _part(b"")]), HEAD + b"\r\nbody")
    assert not transport.written and transport.was_closed


@pytest.mark.parametrize("bodies", [(b"abcde",), (b"abc",)], ids=["longer", "shorter"])
async def test_an_answer_is_as_long_as_it_says(bodies):
    transport = await _asked(_answering([_start((b"content-length", b"4")), *map(_part, bodies)]), HEAD + b"\r\nbody")
    assert transport.was_closed


def _reading(found, max_bytes=8):
    async def app(scope, receive, send):
        async def counted():
            found["messages"] = found.get("messages", 0) + 1
            return await receive()

        connected = ConnectedReceive(counted, None, scope[ANSWERING])
        try:
            found["body"] = await read_body(scope, connected, max_bytes, 5.0)
        except ApiError as error:
            found["status"] = error.status
        await send(_start((b"content-length", b"0")))
        await send(_part(b""))

    return app


async def test_a_body_that_has_come_is_read_without_a_message():
    found = {}
    await _asked(_reading(found), HEAD + b"\r\nbody")
    assert found == {"body": b"body"}


async def test_a_body_in_pieces_and_one_that_is_waited_for_are_received():
    found = {}
    await _asked(_reading(found), HEAD + b"\r\nbo", b"dy")
    assert found["body"] == b"body" and found["messages"] >= 2
    waited = {}
    transport = await _asked(_reading(waited), HEAD + b"expect: 100-continue\r\n\r\nbody")
    assert waited == {"body": b"body", "messages": 1} and transport.written[0] == b"HTTP/1.1 100 Continue\r\n\r\n"


async def test_a_body_that_has_come_and_is_too_long_is_refused():
    found = {}
    chunked = b"POST /x HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n9\r\n123456789\r\n0\r\n\r\n"
    await _asked(_reading(found), chunked)
    assert found == {"status": 413}


def test_headers_are_found_by_name_also_in_a_copy_with_others():
    scope = {"headers": [(b"a", b"1"), (b"b", b"2"), (b"a", b"3")]}
    assert not header(scope, b"a") and not header(scope, b"c"), "one that is given twice counts as none"
    copy = {**scope, "headers": [(b"c", b"4")]}
    assert header(copy, b"c") == b"4" and not header(copy, b"b")
    assert header(scope, b"b") == b"2"
