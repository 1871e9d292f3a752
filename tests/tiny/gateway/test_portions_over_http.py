"""Many sequences at an engine that knows no clients: they reach it one by one, and leave a slot to others."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from qserve.engines.vllm.engine import ENGINE
from qserve.wire.engine_fields import fields_of
from qserve.worker.base import UnixAddress, WorkerFacts, WorkerState, WorkerStatus
from tests.tiny.gateway.small_engine import DOCUMENT, SmallEngine
from tests.tiny.gateway.threaded import gateway_over

CHAT = "/v1/chat/completions"
ASKED: dict[str, Any] = {"model": "big", "messages": [{"role": "user", "content": "x"}], "seed": 1}
WIDE = {**ASKED, "n": 12}
KEYS = ("sk-one", "sk-other")


class Sequences(SmallEngine):
    """Says each choice's seed; a `max_tokens` of 99 waits for `go_on`. Counts the choices that it has at once."""

    def __init__(self, socket: Path) -> None:
        super().__init__(socket)
        self.num_running = self.most_running = 0

    async def answer(self, request: Request) -> Response:
        value = json.loads(await request.body())
        n = value.get("n") or 1
        self.asked.append((request.url.path, json.dumps(value).encode(), request.headers["x-request-id"]))
        if value["seed"] == 13:
            error = {"message": "no good", "type": "BadRequestError", "param": "seed", "code": 400}
            return JSONResponse({"error": error}, 400)
        if value.get("stream"):
            return StreamingResponse(self._said(request, value), media_type="text/event-stream")
        async with self._counted(request, n, waits=value.get("max_tokens") == 99):
            choices = [{"index": index, "text": str(value["seed"] + index)} for index in range(n)]
        usage = {"prompt_tokens": 5, "completion_tokens": n, "total_tokens": 5 + n}
        return JSONResponse({"id": "x", "choices": choices, "usage": usage})

    async def _said(self, request: Request, value: dict[str, Any]) -> AsyncIterator[bytes]:
        async with self._counted(request, 1, waits=False):
            for part in (str(value["seed"]), "!"):
                event = {"id": "x", "choices": [{"index": 0, "text": part}]}
                yield b"data: " + json.dumps(event).encode() + b"\n\n"
                await self._until_gone_or_told(request, value.get("max_tokens") == 99)
        yield b"data: [DONE]\n\n"

    @contextlib.asynccontextmanager
    async def _counted(self, request: Request, count: int, *, waits: bool) -> AsyncIterator[None]:
        self.num_running += count
        self.most_running = max(self.most_running, self.num_running)
        try:
            await asyncio.sleep(0.02)
            await self._until_gone_or_told(request, waits)
            yield
        finally:
            self.num_running -= count

    async def _until_gone_or_told(self, request: Request, waits: bool) -> None:
        while waits and not self.go_on.is_set() and not await request.is_disconnected():
            await asyncio.sleep(0.01)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Sequences]:
    with Sequences(tmp_path / "e.sock").running() as small:
        assert isinstance(small, Sequences)
        yield small


@contextlib.asynccontextmanager
async def _gateway(engine: Sequences, **changed: Any) -> AsyncIterator[list[aiohttp.ClientSession]]:
    """A client for each key."""
    status = WorkerStatus(
        WorkerFacts(
            "chat",
            ("big",),
            UnixAddress(engine.socket),
            "wk",
            4,
            512,
            wire=ENGINE.wire,
            engine="vllm",
            request_fields=fields_of(DOCUMENT),
        ),
        WorkerState.READY,
        "",
    )
    async with (
        gateway_over([replace(status, facts=replace(status.facts, **changed))], keys=KEYS, max_queue=2) as base,
        contextlib.AsyncExitStack() as stack,
    ):
        clients = [aiohttp.ClientSession(base, headers={"authorization": f"Bearer {key}"}) for key in KEYS]
        yield [await stack.enter_async_context(one) for one in clients]


async def _ask(http: aiohttp.ClientSession, body: dict[str, Any], status: int = 200) -> Any:
    async with http.post(CHAT, json=body) as answer:
        said = await answer.read()
        assert answer.status == status, said
        return said.decode() if body.get("stream") else json.loads(said)


async def _until_running(engine: Sequences, count: int) -> None:
    async with asyncio.timeout(60):
        while engine.num_running != count:
            await asyncio.sleep(0.01)


async def test_an_answer_in_portions_is_in_order_and_leaves_a_slot(engine: Sequences) -> None:
    async with _gateway(engine) as (http, _):
        answer = await _ask(http, WIDE)
        assert [(one["index"], one["text"]) for one in answer["choices"]] == [(i, str(1 + i)) for i in range(12)]
        assert answer["usage"] == {"prompt_tokens": 5, "completion_tokens": 12, "total_tokens": 17}
        assert engine.most_running == 3
        said = await _ask(http, {**WIDE, "stream": True})
        assert said.count("[DONE]") == 1 and all(f'"index":{index}' in said for index in range(12))
        assert engine.most_running == 3
        text = await (await http.get("/metrics")).text()
        assert 'requests_total{model="big",route="/v1/chat/completions",status="200"} 2.0' in text
        assert 'qserve_gateway_generation_tokens_total{model="big"} 12.0' in text


@pytest.mark.parametrize("stream", [False, True])
async def test_another_key_is_answered_while_many_sequences_run_and_wait(engine: Sequences, stream: bool) -> None:
    engine.go_on.clear()
    async with _gateway(engine) as (http, other):
        wide = []
        for _ in range(2):  # the second one comes when the first has its slots
            wide.append(asyncio.create_task(_ask(http, {**WIDE, "max_tokens": 99, "stream": stream})))
            await _until_running(engine, 3)
        while 'qserve_gateway_requests_waiting{worker="chat"} 2.0' not in await (await http.get("/metrics")).text():
            await asyncio.sleep(0.01)
        for client in (other, http):
            assert len((await _ask(client, ASKED))["choices"]) == 1
        assert engine.num_running == 3
        engine.go_on.set()
        assert len(await asyncio.gather(*wide)) == 2


async def test_a_client_that_leaves_takes_all_of_its_sequences_along(engine: Sequences) -> None:
    engine.go_on.clear()
    async with _gateway(engine) as (http, other):
        wide = asyncio.create_task(_ask(http, {**WIDE, "max_tokens": 99}))
        await _until_running(engine, 3)
        wide.cancel()
        await _until_running(engine, 0)
        number = len(engine.asked)
        await _ask(other, ASKED)
        assert len(engine.asked) == number + 1, "what waited is not asked any more"


@pytest.mark.parametrize("stream", [False, True])
async def test_the_first_that_is_refused_ends_all(engine: Sequences, stream: bool) -> None:
    async with _gateway(engine) as (http, _):
        if stream:
            said = await _ask(http, {**WIDE, "seed": 5, "stream": True})
            assert '"error"' in said.splitlines()[-2] and "no good" in said
        else:
            assert (await _ask(http, {**WIDE, "seed": 5}, 400))["error"]["message"] == "no good"
        assert (await _ask(http, {**WIDE, "seed": 13}, 400))["error"]["param"] == "seed"
        await _until_running(engine, 0)


async def test_few_sequences_of_many_slots_are_one_request(engine: Sequences) -> None:
    async with _gateway(engine, max_num_seqs=64) as (http, _):
        await _ask(http, {**ASKED, "n": 8})
        assert [json.loads(body)["n"] for _, body, _ in engine.asked] == [8]
        await _ask(http, {**ASKED, "n": 9})
        assert [json.loads(body)["n"] for _, body, _ in engine.asked[1:]] == [1] * 9
        assert len({name for _, _, name in engine.asked}) == 10, "each has an id of its own"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_deadline_ends_all_of_its_sequences(engine: Sequences, stream: bool) -> None:
    engine.go_on.clear()
    async with _gateway(engine) as (http, other):
        body = {**WIDE, "max_tokens": 99, "stream": stream}
        async with http.post(CHAT, json=body, headers={"x-qserve-deadline-ms": "500"}) as answer:
            said = (await answer.read()).decode()
        assert answer.status == (200 if stream else 504) and '"code": "deadline_exceeded"' in said
        await _until_running(engine, 0)
        engine.go_on.set()
        assert len((await _ask(other, ASKED))["choices"]) == 1


async def test_a_slot_that_background_work_frees_is_the_waiting_chats(engine: Sequences) -> None:
    """Though a line of the batch has waited for longer and is shorter: the batch takes no new slot from there on."""
    engine.go_on.clear()
    async with _gateway(engine) as (http, other):
        held = {**ASKED, "max_tokens": 99}
        priority = {"x-qserve-priority": "background"}
        lines = [asyncio.create_task(http.post(CHAT, json=held, headers=priority)) for _ in range(3)]
        await _until_running(engine, 3)
        lines.append(asyncio.create_task(http.post(CHAT, json=held, headers=priority)))
        long = {**held, "messages": [{"role": "user", "content": 1200 * "x"}]}
        chats = [asyncio.create_task(_ask(other, {**long, "seed": seed})) for seed in (7, 8)]
        await _until_running(engine, 4)
        number = len(engine.asked)
        lines[0].cancel()
        async with asyncio.timeout(60):
            while len(engine.asked) == number:
                await asyncio.sleep(0.01)
        seeds = [json.loads(body)["seed"] for _, body, _ in engine.asked]
        assert sorted(seeds) == [1, 1, 1, 7, 8]
        engine.go_on.set()
        await asyncio.gather(*chats, *lines[1:])
