"""Requests that are awaited: answers, streams of events, and each way to have none."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress
from pathlib import Path

import pytest

from qserve.client.answer import Refused, Unreachable
from qserve.client.api import ApiClient
from qserve.client.stream import NoEvent
from tests.unit.client.servers import answer, serving

_EVENTS = "content-type: text/event-stream"
_ONE_EVENT = b'HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n11\r\ndata: {"a": 1} \n\n\r\n'


async def streamed(url: str) -> list:
    async with ApiClient(url) as client:
        return [event async for event in client.stream("/v1/x", {"a": 1})]


async def test_an_answer_of_any_status_and_the_key() -> None:
    with serving(answer(b'{"error": {"message": "full"}}', 503, "Retry-After: 7")) as server:
        async with ApiClient(f"{server.url}/", "sk-1") as client:
            told = await client.ask("POST", "/v1/x", {"a": "ü"})
    assert (told.status, told.message(), told.headers["retry-after"]) == (503, "full", "7")
    assert server.requests[0].startswith(b"POST /v1/x ") and b"Bearer sk-1" in server.requests[0]


async def test_an_address_without_a_server() -> None:
    with serving() as server:
        url = server.url
    async with ApiClient(url) as client:
        with pytest.raises(Unreachable, match="Cannot connect to host"):
            await client.ask("GET", "/")


@pytest.mark.parametrize("sent", [b"SSH-2.0\r\n", b"", answer(b"{}", length=9), None])
async def test_what_is_no_answer_is_unreachable(sent: bytes | None) -> None:
    with serving(sent) as server:
        async with ApiClient(server.url, timeout_s=0.2) as client:
            with pytest.raises(Unreachable):
                await client.ask("GET", "/")


async def test_the_key_is_sent_to_no_other_host() -> None:
    with serving(answer(b"there")) as other, serving(answer(b"", 307, f"location: {other.url}/x")) as server:
        async with ApiClient(server.url, "sk-1") as client:
            assert (await client.ask("GET", "/")).body == b"there"
    assert b"sk-1" in server.requests[0] and b"sk-1" not in other.requests[0]


async def test_a_stream_gives_objects_until_it_is_done() -> None:
    with serving(answer(b': ping\n\ndata: {"a": 1}\n\ndata: {"a": 2}\n\ndata: [DONE]\n\nx', 200, _EVENTS)) as server:
        assert await streamed(server.url) == [{"a": 1}, {"a": 2}]


async def test_a_refused_stream_has_the_answer() -> None:
    refusal = answer(b'{"error": {"message": "too long"}}', 400)
    with serving(refusal) as server, pytest.raises(Refused, match="status 400: too long"):
        await streamed(server.url)


@pytest.mark.parametrize(("length", "error"), [(99, Unreachable), (None, NoEvent)])
async def test_a_stream_that_breaks_off_is_told_after_its_events(length: int | None, error: type[Exception]) -> None:
    with serving(answer(b'data: {"a": 1}\n\ndata: {"a"', 200, _EVENTS, length=length)) as server:
        async with ApiClient(server.url) as client:
            events = client.stream("/v1/x", {})
            assert await anext(events) == {"a": 1}
            with pytest.raises(error):
                await anext(events)


async def test_over_a_socket_a_stream_that_is_done_leaves_its_connection_to_the_next(tmp_path: Path) -> None:
    connections = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        with suppress(asyncio.IncompleteReadError):
            while await reader.readuntil(b"{}"):
                writer.write(_ONE_EVENT + b"e\r\ndata: [DONE]\n\n\r\n")
                await asyncio.sleep(0.05)  # the end comes later, as from a real server
                writer.write(b"0\r\n\r\n")
        writer.close()

    server = await asyncio.start_unix_server(serve, tmp_path / "s")
    async with server, ApiClient("http://worker", socket=tmp_path / "s") as client:
        for _ in range(2):
            assert [event async for event in client.stream("/v1/x", {})] == [{"a": 1}]
    assert len(connections) == 1


async def test_a_stream_that_is_closed_closes_its_connection(tmp_path: Path) -> None:
    left = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"{}")
        writer.write(_ONE_EVENT)
        assert await reader.read() == b""
        left.set()
        writer.close()

    server = await asyncio.start_unix_server(serve, tmp_path / "s")
    async with server, ApiClient("http://worker", socket=tmp_path / "s") as client:
        async with aclosing(client.stream("/v1/x", {})) as events:
            assert await anext(events) == {"a": 1}
        await asyncio.wait_for(left.wait(), 60)
