"""Requests for a model that is not in memory: streams begin with comments, and what goes wrong then is an event."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
import pytest_asyncio

from qserve.gateway.app import build_gateway
from qserve.gateway.relay import keep_alive
from qserve.gateway.settings import GatewaySettings
from qserve.worker.base import UnixAddress, WorkerFacts, WorkerState, WorkerStatus
from tests.tiny.gateway.conftest import WORKER_KEY, FakeWorkerProcess

ASK = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
COMMENT = ": the model is being loaded"


class Stack(NamedTuple):
    http: httpx.AsyncClient
    status: WorkerStatus

    def asked(self, **fields: Any) -> asyncio.Task[httpx.Response]:
        return asyncio.create_task(self.http.post("/v1/chat/completions", json={**ASK, **fields}))


@pytest_asyncio.fixture
async def stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stack]:
    monkeypatch.setattr(keep_alive, "_EVERY_S", 0.05)
    socket = tmp_path / "w"
    worker = FakeWorkerProcess(socket)
    worker.start()
    facts = WorkerFacts("m", ("m",), UnixAddress(socket), WORKER_KEY, 4, 1024, role="chat", loads_on_demand=True)
    status = WorkerStatus(facts, WorkerState.IDLE, "it is not in memory")
    transport = httpx.ASGITransport(build_gateway(GatewaySettings(load_wait_s=30), [status]))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=60) as http:
        yield Stack(http, status)
    worker.kill()


async def waits(task: asyncio.Task[httpx.Response]) -> None:
    await asyncio.sleep(0.3)
    assert not task.done()


async def test_a_stream_begins_with_comments(stack: Stack) -> None:
    asked = stack.asked(stream=True)
    await waits(asked)
    stack.status.state = WorkerState.READY
    reply = await asked
    assert reply.status_code == 200 and reply.headers["content-type"].startswith("text/event-stream")
    comments, _, answer = reply.text.partition("data: ")
    assert set(filter(None, comments.splitlines())) == {COMMENT}
    assert answer.rstrip().endswith("data: [DONE]") and COMMENT not in answer


async def test_a_whole_answer_has_its_own_status(stack: Stack) -> None:
    asked = stack.asked()
    await waits(asked)
    stack.status.state = WorkerState.READY
    reply = await asked
    assert reply.status_code == 200 and reply.json()["choices"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_load_that_fails_is_told(stack: Stack, stream: bool) -> None:
    asked = stack.asked(stream=stream)
    await waits(asked)
    stack.status.detail, stack.status.state = "it could not be loaded: no weights", WorkerState.FAILED
    reply = await asked
    if stream:
        last = json.loads(reply.text.split("data: ")[-1])
        assert reply.status_code == 200 and reply.text.startswith(COMMENT)
    else:
        last = reply.json()
        assert reply.status_code == 503 and reply.headers["retry-after"]
    assert last["error"]["code"] == "worker_not_ready" and "no weights" in last["error"]["message"]


async def test_the_service_is_ready_meanwhile_and_says_what_is_in_memory(stack: Stack) -> None:
    assert (await stack.http.get("/ready")).json()["status"] == "ready"
    (card,) = (await stack.http.get("/v1/models")).json()["data"]
    assert card["state"] == "idle"
    stack.status.state = WorkerState.FAILED
    reply = await stack.http.get("/ready")
    assert reply.status_code == 200 and reply.json()["workers"][0]["state"] == "failed"
