"""What goes through the gateway to the UI's process and back: byte for byte, as it comes, and nothing else."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from pathlib import Path

import aiohttp
import pytest
import uvicorn
import uvloop

from qserve.gateway.app import build_gateway
from qserve.gateway.http.server import build_server
from qserve.gateway.settings import GatewaySettings
from qserve.gateway.web import UiEndpoint
from qserve.worker.base import UnixAddress, WorkerFacts, WorkerState, WorkerStatus

EVENT = b'data: {"msg": "\xe4\xbd\xa0"}\n\n'


class FakeUi:
    """Says what it was asked; a stream's second event waits until somebody has seen the first."""

    def __init__(self) -> None:
        self.seen = threading.Event()
        self.left = threading.Event()

    async def __call__(self, scope, receive, send) -> None:
        if scope["type"] != "http":
            return
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        is_stream = scope["path"] == "/gradio_api/queue/data"
        kind = b"text/event-stream" if is_stream else b"application/json"
        headers = [(b"content-type", kind), (b"set-cookie", b"theirs=1"), (b"etag", b'"e"')]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        if not is_stream:
            told = {"path": scope["raw_path"].decode(), "query": scope["query_string"].decode(), "bytes": len(body)}
            told["headers"] = {name.decode(): value.decode() for name, value in scope["headers"]}
            await send({"type": "http.response.body", "body": json.dumps(told).encode()})
            return
        await send({"type": "http.response.body", "body": EVENT, "more_body": True})
        while not self.seen.is_set():
            if (await asyncio.wait([waiting := asyncio.ensure_future(receive())], timeout=0.02))[0]:
                self.left.set()
                return
            waiting.cancel()
        await send({"type": "http.response.body", "body": EVENT})


def _in_thread(server: uvicorn.Server) -> threading.Thread:
    thread = threading.Thread(target=lambda: uvloop.run(server.serve()))
    thread.start()
    while not server.started:
        assert thread.is_alive(), "it did not start"
        time.sleep(0.005)
    return thread


@pytest.fixture
async def stack(tmp_path: Path):
    """(session of a browser that has visited the page, fake UI, the UI's endpoint)."""
    fake, socket = FakeUi(), tmp_path / "ui.sock"
    inner = uvicorn.Server(uvicorn.Config(fake, uds=str(socket), lifespan="off", log_config=None, ws="none"))
    chat = WorkerStatus(WorkerFacts("chat", ("m",), UnixAddress(tmp_path / "none"), "k", 1, 1))
    ui = UiEndpoint(WorkerStatus(WorkerFacts("ui", ("web interface",), UnixAddress(socket), "wk-ui", 1, 1)), "internal")
    ui.worker.state = WorkerState.READY
    outer = build_server(build_gateway(GatewaySettings(max_body_bytes=100_000), [chat], ui=ui), "127.0.0.1", 0, 1)
    threads = [_in_thread(inner), _in_thread(outer)]
    url = f"http://127.0.0.1:{outer.servers[0].sockets[0].getsockname()[1]}"
    jar = aiohttp.CookieJar(unsafe=True)
    try:
        async with aiohttp.ClientSession(url, cookie_jar=jar, headers={"origin": url}) as http:
            async with http.get("/", headers={"accept": "text/html"}) as page:
                assert page.status == 200
            yield http, fake, ui
    finally:
        fake.seen.set()
        inner.should_exit = outer.should_exit = True
        for thread in threads:
            await asyncio.to_thread(thread.join)


async def test_what_the_browser_says_goes_through_but_for_its_secrets(stack):
    http, _, _ = stack
    form = aiohttp.FormData()
    form.add_field("files", b"x" * 50_000, filename="pairs.jsonl")
    async with http.post("/gradio_api/upload?upload_id=a%20b", data=form) as answer:
        told = await answer.json()
        assert answer.headers.getall("set-cookie", []) == [], "the UI's process sets no cookies"
        assert answer.headers["etag"] == '"e"'
    assert (told["path"], told["query"]) == ("/gradio_api/upload", "upload_id=a%20b")
    assert told["bytes"] > 50_000
    headers = told["headers"]
    assert headers["content-type"].startswith("multipart/form-data; boundary=")
    assert headers["authorization"] == "Bearer wk-ui"
    assert len(headers["x-qserve-visitor"]) == 32
    assert headers["x-forwarded-host"].startswith("127.0.0.1:")
    assert not {"cookie", "origin"} & headers.keys()


async def test_a_visitors_name_can_t_be_made_up(stack):
    http, _, _ = stack
    async with http.get("/theme.css", headers={"x-qserve-visitor": "root", "authorization": "Bearer x"}) as answer:
        told = (await answer.json())["headers"]
    assert told["x-qserve-visitor"] != "root"
    assert told["authorization"] == "Bearer wk-ui"


async def test_events_come_as_they_are_made(stack):
    http, fake, _ = stack
    async with http.get("/gradio_api/queue/data?session_hash=s") as answer:
        assert await answer.content.readexactly(len(EVENT)) == EVENT
        fake.seen.set()
        assert await answer.content.read() == EVENT
        assert answer.headers["x-accel-buffering"] == "no"


async def test_who_leaves_is_gone_for_the_ui_too(stack):
    http, fake, _ = stack
    async with http.get("/gradio_api/queue/data?session_hash=s") as answer:
        await answer.content.readexactly(len(EVENT))
        answer.close()
    assert await asyncio.to_thread(fake.left.wait, 20)


async def test_a_stream_ends_when_its_process_is_given_up(stack):
    http, _, ui = stack
    async with http.get("/gradio_api/queue/data?session_hash=s") as answer:
        await answer.content.readexactly(len(EVENT))
        ui.worker.state = WorkerState.RESTARTING
        async with asyncio.timeout(60):
            assert await answer.content.read() == b""
    async with http.get("/theme.css") as answer:
        assert (answer.status, (await answer.json())["error"]["code"]) == (503, "worker_not_ready")


async def test_an_upload_is_bounded(stack):
    http, _, _ = stack
    async with http.post("/gradio_api/upload", data=b"x" * 100_001, headers={"content-type": "a/b"}) as answer:
        assert (answer.status, (await answer.json())["error"]["code"]) == (413, "body_too_large")


async def test_a_page_that_is_asked_for_by_another_name_is_not_found(stack):
    http, _, _ = stack
    for query in ("deep_link=../x", "page=score", "__theme=dark&deep_link=x"):
        async with http.get(f"/?{query}", headers={"accept": "text/html"}) as answer:
            assert answer.status == 404
    async with http.head("/", headers={"accept": "text/html"}) as answer:
        assert (answer.status, await answer.read()) == (200, b"")
