"""The gateway's HTTP client against a scripted server: split bytes, pools, broken and unwanted answers."""

from __future__ import annotations

import asyncio
import contextlib
import random

import pytest

from qserve.gateway.bodies import Body
from qserve.gateway.relay.client import ConnectionBroke, Unreachable, WorkerClient
from qserve.worker.base import TcpAddress, UnixAddress

CHUNKED = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
WHOLE = b"HTTP/1.1 404 Not Found\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"


@contextlib.asynccontextmanager
async def scripted(tmp_path, *answers, tcp=False):
    """A server that answers the requests of each connection with these pieces in turn; b"" closes the connection."""
    seen, connections = [], []
    left = list(answers)

    async def connection(reader, writer):
        connections.append(writer)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while left:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(dict(line.split(b": ") for line in head.split(b"\r\n")[1:-2]).get(b"content-length", 0))
                seen.append(head + await reader.readexactly(length))
                for piece in left.pop(0):
                    if not piece:
                        writer.close()
                        return
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0.001)
            await reader.read()
        writer.close()

    if tcp:
        server = await asyncio.start_server(connection, "127.0.0.1", 0)
        address = TcpAddress("127.0.0.1", server.sockets[0].getsockname()[1])
    else:
        server = await asyncio.start_unix_server(connection, str(tmp_path / "s"))
        address = UnixAddress(tmp_path / "s")
    client = WorkerClient(address, "internal", connect_timeout_s=1)
    try:
        yield client, seen, connections
    finally:
        client.close()
        server.close()
        for writer in connections:
            writer.close()
        await asyncio.sleep(0.01)


async def _ask(client, body=b"{}"):
    body = body if isinstance(body, Body) else Body(body)
    async with client.request("POST", "/x", "id-1", body) as reply:
        return reply.status, reply.content_type, await reply.read()


async def test_a_body_is_dropped_when_the_worker_has_taken_it_and_not_before(tmp_path):
    """The answer may take minutes, and the body may be megabytes."""
    path, begun, may_read, may_answer = tmp_path / "slow", asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def slow(reader, writer):
        begun.set()
        await may_read.wait()
        await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(8_000_000)
        await may_answer.wait()
        writer.write(WHOLE)
        await writer.drain()
        writer.close()

    body, client = Body(b"x" * 8_000_000), WorkerClient(UnixAddress(path), "internal", connect_timeout_s=1)
    async with asyncio.timeout(60), await asyncio.start_unix_server(slow, str(path)):
        asking = asyncio.create_task(_ask(client, body))
        await begun.wait()
        assert body.data
        may_read.set()
        while body.data:
            await asyncio.sleep(0.001)
        assert not asking.done()
        may_answer.set()
        assert (await asking)[0] == 404
    client.close()


@pytest.mark.parametrize("tcp", [False, True])
async def test_a_request_says_what_it_must_and_the_connection_is_used_again(tmp_path, tcp):
    async with scripted(tmp_path, [WHOLE], [WHOLE], [WHOLE], tcp=tcp) as (client, seen, connections):
        for body in (b"{}", b"", b"x" * 1_000_000):
            assert await _ask(client, body) == (404, b"application/json", b"{}")
    assert len(connections) == 1
    assert seen[0].startswith(b"POST /x HTTP/1.1\r\n") and seen[0].endswith(b"content-length: 2\r\n\r\n{}")
    for line in (b"authorization: Bearer internal", b"x-request-id: id-1", b"accept-encoding: identity"):
        assert line in seen[0]
    assert seen[2].endswith(b"x" * 1_000_000)


@pytest.mark.parametrize("seed", range(5))
async def test_however_the_bytes_are_split(tmp_path, seed):
    events = [b"data: %d\n\n" % number for number in range(30)]
    answer = CHUNKED + b"".join(b"%x\r\n%b\r\n" % (len(event), event) for event in events) + b"0\r\n\r\n"
    cuts = sorted(random.Random(seed).sample(range(1, len(answer)), 25))
    pieces = [answer[a:b] for a, b in zip([0, *cuts], [*cuts, len(answer)], strict=True)]
    async with scripted(tmp_path, pieces, [WHOLE]) as (client, _, connections):
        assert await _ask(client) == (200, b"text/event-stream", b"".join(events))
        assert (await _ask(client))[0] == 404
    assert len(connections) == 1


@pytest.mark.parametrize(
    "pieces",
    [
        [b""],
        [b"HTTP/1.1 200", b""],
        [CHUNKED, b"5\r\nab", b""],
        [CHUNKED, b"2\r\nab\r\n", b""],
        [b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc", b""],
        [b"no http at all\r\n\r\n"],
        [CHUNKED, b"zz\r\n"],
    ],
    ids=["nothing", "half a head", "half a chunk", "no last chunk", "short body", "no HTTP", "no chunk"],
)
async def test_an_answer_that_breaks_off_is_told_and_never_used_again(tmp_path, pieces):
    async with scripted(tmp_path, pieces, [WHOLE]) as (client, _, connections):
        with pytest.raises(ConnectionBroke):
            await _ask(client)
        assert (await _ask(client))[0] == 404
    assert len(connections) == 2


async def test_an_answer_that_was_not_read_whole_closes_its_connection(tmp_path):
    async with scripted(tmp_path, [CHUNKED, b"2\r\nab\r\n"], [WHOLE]) as (client, _, connections):
        async with client.request("POST", "/x", "id", Body(b"{}")) as reply:
            assert await reply.read_some() == b"ab"
        assert (await _ask(client))[0] == 404
    assert len(connections) == 2


@pytest.mark.parametrize("extra", [WHOLE, b"junk"])
async def test_what_nobody_asked_for_is_never_taken_for_the_next_answer(tmp_path, extra):
    async with scripted(tmp_path, [WHOLE + extra], [CHUNKED + b"0\r\n\r\n"]) as (client, _, connections):
        with contextlib.suppress(ConnectionBroke):  # junk right behind the answer may spoil it too
            await _ask(client)
        assert (await _ask(client))[0] == 200
    assert len(connections) == 2


async def test_a_connection_that_is_to_be_closed_is_not_kept(tmp_path):
    closing = WHOLE.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")
    async with scripted(tmp_path, [closing], [WHOLE]) as (client, _, connections):
        for _ in range(2):
            assert (await _ask(client))[0] == 404
    assert len(connections) == 2


async def test_a_connection_that_the_worker_closed_meanwhile_is_not_used(tmp_path):
    async with scripted(tmp_path, [WHOLE, b""], [WHOLE]) as (client, _, connections):
        await _ask(client)
        await asyncio.sleep(0.05)
        assert (await _ask(client))[0] == 404
    assert len(connections) == 2


async def test_no_socket_no_listener_no_answer(tmp_path):
    stale = tmp_path / "stale"
    server = await asyncio.start_unix_server(lambda *_: None, str(stale))
    server.close()
    for path in (tmp_path / "absent", stale):
        with pytest.raises(Unreachable):
            await _ask(WorkerClient(UnixAddress(path), "k", 1))
