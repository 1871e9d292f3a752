"""A gateway that serves does not walk what it has imported at each full collection."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from typing import Any

import httpx

from qserve.gateway.http import server as served

_COUNTED = """
import gc, qserve.gateway.app
from qserve.gateway.http.server import freeze_heap
before = len(gc.get_objects())
freeze_heap()
print(before, len(gc.get_objects()))
"""


def test_what_was_imported_is_not_looked_through_again() -> None:
    told = subprocess.run([sys.executable, "-c", _COUNTED], capture_output=True, text=True, timeout=60, check=True)
    before, after = map(int, told.stdout.split())
    assert after < before / 10


async def test_it_is_done_before_the_first_request(monkeypatch) -> None:
    seen = []

    class Server:
        async def serve(self, sockets: list[socket.socket]) -> None:
            seen.append("serves")

    monkeypatch.setattr(served, "freeze_heap", lambda: seen.append("frozen"))
    with socket.socket() as listener:
        await served.run_server(Server(), listener)
    assert seen == ["frozen", "serves"]


def named(name: bytes) -> Any:
    """An app that answers with its name."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http"
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"3")]})
        await send({"type": "http.response.body", "body": name})

    return app


async def test_one_that_leaves_hands_clients_on_and_loses_none() -> None:
    """Kept connections are told to come anew, what waits in the backlog is accepted by the other one."""
    listener = socket.create_server(("127.0.0.1", 0))
    url = "http://{}:{}".format(*listener.getsockname())
    servers = [served.build_server(named(name), "", 0, drain_timeout_s=1) for name in (b"old", b"new")]
    for server in servers:
        server.config.lifespan = "off"
    old, new = servers
    serving = [asyncio.create_task(served.run_server(old, listener.dup()))]
    async with asyncio.timeout(60), httpx.AsyncClient(base_url=url) as kept, httpx.AsyncClient(base_url=url) as later:
        assert (await kept.get("/")).content == b"old"
        await asyncio.gather(*(later.get("/") for _ in range(20)))
        old.leave()
        await asyncio.sleep(0.1)
        waiting = [asyncio.create_task(httpx.AsyncClient(base_url=url).get("/")) for _ in range(20)]
        last = await kept.get("/")
        assert (last.content, last.headers.get("connection")) == (b"old", "close")
        assert not any(one.done() for one in waiting), "nobody accepts"
        serving.append(asyncio.create_task(served.run_server(new, listener)))
        assert [(await one).content for one in waiting] == [b"new"] * 20
        assert (await kept.get("/")).content == b"new"
    for server in servers:
        server.should_exit = True
    await asyncio.gather(*serving)
