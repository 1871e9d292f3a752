"""Request line and headers are bounded before anybody is asked for a key, however they arrive."""

from __future__ import annotations

import asyncio
import json

import pytest

from qserve.gateway.http.bounded_http import MAX_HEAD_BYTES

_BEGIN = b"GET /health HTTP/1.1\r\nhost: localhost\r\n"
_LONG = {
    "many headers": _BEGIN + b"".join(b"x-%d: %b\r\n" % (number, b"a" * 100) for number in range(1000)) + b"\r\n",
    "one long header": _BEGIN + b"x: " + b"a" * 2 * MAX_HEAD_BYTES + b"\r\n\r\n",
    "one endless header": _BEGIN + b"x: " + b"a" * 4 * MAX_HEAD_BYTES,
    "an endless line": b"GET /" + b"a" * 4 * MAX_HEAD_BYTES,
    "an endless name": _BEGIN + b"a" * 4 * MAX_HEAD_BYTES,
}


async def _answer(port, *pieces):
    """Status line and body of what comes back before the gateway closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for piece in pieces:
            writer.write(piece)
            await asyncio.sleep(0)
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
        body = b"" if b" 200 " in head else await asyncio.wait_for(reader.read(), 60)
        return head.split(b"\r\n")[0], body
    finally:
        writer.close()


@pytest.mark.parametrize("case", _LONG)
@pytest.mark.parametrize("size", [1 << 20, 1000])
async def test_too_long_a_head_is_431_and_the_connection_ends(running, case, size):
    message = _LONG[case]
    async with running() as stack:
        line, body = await _answer(stack.port, *(message[at : at + size] for at in range(0, len(message), size)))
        assert line.startswith(b"HTTP/1.1 431 ")
        assert json.loads(body)["error"]["code"] == "headers_too_large"
        async with stack.http.get(stack.url + "/health") as response:
            assert response.status == 200


async def test_a_long_head_of_a_message_is_refused_in_its_clients_shape(running):
    message = _LONG["one long header"].replace(b"GET /health", b"POST /v1/messages?beta=true")
    async with running() as stack:
        reader, writer = await asyncio.open_connection("127.0.0.1", stack.port)
        writer.write(message)
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
        body = json.loads(await asyncio.wait_for(reader.read(), 60))
        writer.close()
        assert head.startswith(b"HTTP/1.1 431 ") and b"\r\nrequest-id: req-" in head
        assert body["type"] == "error" and set(body["error"]) == {"type", "message"}


async def test_heads_below_the_bound_pass_one_after_the_other(running):
    """Each request of a connection is counted by itself, and a body is no head."""
    head = _BEGIN + b"x: " + b"a" * (MAX_HEAD_BYTES // 2) + b"\r\n\r\n"
    body = b"a" * 4 * MAX_HEAD_BYTES
    post = b"POST /health HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(body)
    async with running() as stack:
        reader, writer = await asyncio.open_connection("127.0.0.1", stack.port)
        for message, status in [(head, b"200"), (head, b"200"), (post + body, b"405"), (head, b"200")]:
            writer.write(message)
            line, _, rest = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)).partition(b"\r\n")
            assert line.split()[1] == status
            length = next(one for one in rest.split(b"\r\n") if one.startswith(b"content-length"))
            await reader.readexactly(int(length.partition(b":")[2]))
        writer.close()


async def test_what_is_no_http_is_told_so_in_json(running):
    async with running() as stack:
        line, body = await _answer(stack.port, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 tls hello\r\n\r\n")
        assert line.startswith(b"HTTP/1.1 400 ") and json.loads(body)["error"]["code"] == "invalid_http"
