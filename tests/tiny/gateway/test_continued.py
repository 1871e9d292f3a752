"""A stream whose worker dies behind any byte: its client has the same bytes as without, and no error."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple

import httpx
import pytest
import pytest_asyncio
import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from qserve.demo import chat_model_path
from qserve.engines.transformers.worker.api.app import build_app
from qserve.engines.transformers.worker.api.prompt_workers import prompt_workers
from qserve.gateway.app import build_gateway
from qserve.gateway.relay.journal import Journals
from qserve.gateway.settings import GatewaySettings
from qserve.wire.worker_headers import JOURNAL
from qserve.worker.base import UnixAddress, WorkerFacts, WorkerState, WorkerStatus
from tests.tiny.engine.loading import running

ANSWERED_TWICE = 2
CHAT = {"messages": [{"role": "user", "content": "What is 12+30?"}]}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "greedy": ("/v1/chat/completions", {**CHAT, "temperature": 0, "stream_options": {"include_usage": True}}),
    "drawn": ("/v1/chat/completions", {**CHAT, "temperature": 1.4, "seed": 11, "max_tokens": 7, "ignore_eos": True}),
    "Responses": ("/v1/responses", {"input": "What is 1+1?", "temperature": 0, "max_output_tokens": 5}),
}


class Broken:
    """A worker's app whose first answer to a request ends behind `after` bytes, as if its process were gone."""

    def __init__(self, app: ASGIApp, died: Callable[[], None]) -> None:
        self._app = app
        self._died = died
        self.after: int | None = None
        self.asked: list[int] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name.decode(): value.decode() for name, value in scope.get("headers", ())}
        if JOURNAL not in headers:
            await self._app(scope, receive, send)
            return
        self.asked.append(int(headers[JOURNAL]))
        left = self.after

        async def until_broken(message: Message) -> None:
            nonlocal left
            if left is not None and message["type"] == "http.response.body":
                body = message.get("body", b"")
                if left < len(body):
                    self.after = None
                    await send({**message, "body": body[:left], "more_body": True})
                    self._died()
                    raise ConnectionResetError("killed")
                left -= len(body)
            await send(message)

        await self._app(scope, receive, until_broken)


class Stack(NamedTuple):
    http: httpx.AsyncClient
    worker: Broken
    status: WorkerStatus

    async def answer(self, path: str, fields: dict[str, Any], after: int | None) -> str:
        self.worker.after = after
        self.worker.asked.clear()
        reply = await self.http.post(path, json={"model": "m", "stream": True, **fields})
        assert reply.status_code == 200, reply.text
        return without_ids(reply.text)


def without_ids(text: str) -> str:
    """Another request has other ids and another time, which are held to be the same within one answer."""
    found = set(re.findall(r"chatcmpl-\w{32}|(?:resp|msg|rs|fc)_\w{32}|created(?:_at)?\":\d+", text))
    assert len(found) <= 3 + text.count("output_item.added"), found
    for number, one in enumerate(sorted(found, key=text.index)):
        text = text.replace(one, f"id-{number}")
    return text


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    """The gateway and a real worker in one process."""
    folder = tmp_path_factory.mktemp("continued")
    facts = WorkerFacts("chat", ("m",), UnixAddress(folder / "w"), "key", 8, 1024, role="chat")
    status = WorkerStatus(facts, state=WorkerState.READY)

    def died() -> None:
        status.num_restarts += 1

    async with running(str(chat_model_path())) as engine:
        prompts = prompt_workers(engine, folder / "socket")
        await prompts.start()
        worker = Broken(build_app(engine, prompts, ("m",), "key"), died)
        server = uvicorn.Server(uvicorn.Config(worker, uds=str(folder / "w"), log_level="critical"))
        serving = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
        transport = httpx.ASGITransport(build_gateway(GatewaySettings(resume_wait_s=5.0), [status]))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=60) as http:
            yield Stack(http, worker, status)
        server.should_exit = True
        await serving
        await prompts.close()


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("kind", KINDS)
async def test_behind_any_event_and_in_its_middle(stack: Stack, kind: str) -> None:
    path, fields = KINDS[kind]
    whole = await stack.answer(path, fields, None)
    headers = {"authorization": "Bearer key", JOURNAL: "0"}
    async with httpx.AsyncClient(
        transport=httpx.AsyncHTTPTransport(uds=str(stack.status.facts.address.path))
    ) as direct:
        body = {"model": "m", "stream": True, **fields}
        told = (await direct.post(f"http://worker{path}", json=body, headers=headers)).content
    ends, num_continued = [match.end() for match in re.finditer(rb"\n\n", told)], 0
    for end in ends[:-1]:
        for after in (end, end + 2, min(end + 40, len(told) - 10)):
            assert await stack.answer(path, fields, after) == whole, f"it died behind {told[:after]!r}"
            assert len(stack.worker.asked) == ANSWERED_TWICE
            num_continued += stack.worker.asked[1] > 0
    # Where the gateway hears of the end before the first event, it asks again as if nothing had been.
    assert num_continued >= len(ends)


@pytest.mark.asyncio(loop_scope="module")
async def test_an_answer_that_differs_is_not_passed_on(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    path, fields = KINDS["greedy"]
    whole = await stack.answer(path, fields, None)
    monkeypatch.setattr(
        "qserve.gateway.relay.journal.StreamJournal.begin_again", changed(b'"created":', b'"created":1')
    )
    text = await stack.answer(path, fields, 900)
    last = json.loads(text.split("data: ")[-1])
    assert last["error"]["code"] == "not_continued" and "differs from what was sent" in last["error"]["message"]
    assert whole.startswith(text[: text.rindex("data: ")])


def changed(old: bytes, new: bytes) -> Any:
    from qserve.gateway.relay.journal import StreamJournal

    begin_again = StreamJournal.begin_again

    def patched(self: StreamJournal) -> tuple[bytes, int]:
        body, num_bytes = begin_again(self)
        assert old in body[-num_bytes:]
        journal = body[-num_bytes:].replace(old, new)
        return body[:-num_bytes] + journal, len(journal)

    return patched


@pytest.mark.asyncio(loop_scope="module")
async def test_without_room_it_ends_as_it_would_without(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Journals, "takes", lambda self, num_bytes, held: False)
    path, fields = KINDS["greedy"]
    text = await stack.answer(path, {**fields, "max_tokens": 50}, 900)  # another request, which ended no worker yet
    assert json.loads(text.split("data: ")[-1])["error"]["code"] == "worker_died"


@pytest.mark.asyncio(loop_scope="module")
async def test_nothing_is_kept_afterwards(stack: Stack) -> None:
    path, fields = KINDS["greedy"]
    await stack.answer(path, {**fields, "max_tokens": 51}, 700)
    metrics = (await stack.http.get("/metrics")).text
    assert "qserve_gateway_journal_bytes 0.0" in metrics
    assert float(re.search(r'streams_continued_total\{model="m"\} (\S+)', metrics)[1]) > 0  # type: ignore[index]
