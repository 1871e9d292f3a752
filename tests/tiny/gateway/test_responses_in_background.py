"""Background responses over a real worker, one gateway process or two: made, followed, resumed, cancelled, deleted."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import pytest_asyncio
import uvicorn

from qserve.demo import chat_model_path
from qserve.engines.transformers.worker.api.app import build_app
from qserve.engines.transformers.worker.api.prompt_workers import prompt_workers
from qserve.gateway.app import build_gateway
from qserve.gateway.http.server import build_server
from qserve.gateway.settings import GatewaySettings
from qserve.wire.worker_headers import DEADLINE
from qserve.worker.base import UnixAddress, WorkerFacts, WorkerState, WorkerStatus
from tests.tiny.engine.loading import running

PATH = "/v1/responses"
ASK = {"model": "m", "input": "What is 12+30?", "temperature": 0, "background": True}
# Long enough that nothing ends by itself while a test looks.
ENDLESS = {**ASK, "max_output_tokens": 900, "ignore_eos": True}
KEYS = ("sk-one", "sk-two")
LEFT = "qserve_gateway_disconnects_total"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def worker(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[WorkerStatus]:
    folder = tmp_path_factory.mktemp("background")
    async with running(str(chat_model_path())) as engine:
        prompts = prompt_workers(engine, folder / "socket")
        await prompts.start()
        app = build_app(engine, prompts, ("m",), "key")
        server = uvicorn.Server(uvicorn.Config(app, uds=str(folder / "w"), log_level="critical"))
        serving = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
        facts = WorkerFacts("chat", ("m",), UnixAddress(Path(folder / "w")), "key", 8, 1024, role="chat")
        yield WorkerStatus(facts, state=WorkerState.READY)
        server.should_exit = True
        await serving
        await prompts.close()


def client_of(status: WorkerStatus, key: str = KEYS[0], **settings: Any) -> httpx.AsyncClient:
    app = build_gateway(GatewaySettings(**{"keys": KEYS, **settings}), [status])
    headers = {"authorization": f"Bearer {key}"}
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x", timeout=120, headers=headers)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def http(worker: WorkerStatus) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(worker) as one:
        yield one


def events(text: str) -> list[dict[str, Any]]:
    return [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: ")]


def text_of(response: dict[str, Any]) -> str:
    parts = [part for item in response["output"] if item["type"] == "message" for part in item["content"]]
    return "".join(part["text"] for part in parts)


async def until_over(http: httpx.AsyncClient, response_id: str) -> dict[str, Any]:
    async with asyncio.timeout(120):
        while True:
            response: dict[str, Any] = (await http.get(f"{PATH}/{response_id}")).json()
            if response["status"] not in ("queued", "in_progress"):
                return response
            await asyncio.sleep(0.02)


async def made(http: httpx.AsyncClient, **fields: Any) -> dict[str, Any]:
    reply = await http.post(PATH, json={**ASK, **fields})
    assert reply.status_code == 200, reply.text
    return dict(reply.json())


async def gauge(http: httpx.AsyncClient, name: str) -> float:
    lines = (await http.get("/metrics")).text.splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith((f"{name}{{", f"{name} ")))


async def idle(http: httpx.AsyncClient) -> None:
    async with asyncio.timeout(60):
        while await gauge(http, "qserve_gateway_requests_running"):
            await asyncio.sleep(0.02)


pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_it_answers_at_once_and_is_there_when_it_is_over(http: httpx.AsyncClient) -> None:
    plain = (await http.post(PATH, json={**ASK, "background": False})).json()
    first = await made(http, metadata={"a": "b"})
    assert first["status"] in ("queued", "in_progress") and first["background"] is True and first["output"] == []
    last = await until_over(http, first["id"])
    assert last["status"] == "completed" and last["id"] == first["id"] and last["metadata"] == {"a": "b"}
    assert text_of(last) == text_of(plain) and last["usage"] == plain["usage"]


async def test_events_are_resumed_behind_any_number(http: httpx.AsyncClient) -> None:
    whole = events((await http.post(PATH, json={**ASK, "stream": True})).text)
    response_id = whole[0]["response"]["id"]
    assert [one["sequence_number"] for one in whole] == list(range(len(whole)))
    assert whole[-1]["response"] == await until_over(http, response_id)
    for after in (None, *range(len(whole) + 2)):
        query = {"stream": "true"} if after is None else {"stream": "true", "starting_after": after}
        reply = await http.get(f"{PATH}/{response_id}", params=query)
        assert events(reply.text) == whole[0 if after is None else after + 1 :], f"after {after}"


async def test_a_cancelled_one_frees_its_slot_and_stays_cancelled(http: httpx.AsyncClient) -> None:
    left = await gauge(http, LEFT)
    first = await made(http, **ENDLESS)
    while await gauge(http, "qserve_gateway_requests_running") != 1:
        await asyncio.sleep(0.02)
    for _ in range(2):
        reply = await http.post(f"{PATH}/{first['id']}/cancel")
        assert reply.status_code == 200 and reply.json()["status"] == "cancelled"
    await idle(http)
    assert await gauge(http, LEFT) == left + 1
    assert (await http.get(f"{PATH}/{first['id']}")).json()["status"] == "cancelled"
    told = events((await http.get(f"{PATH}/{first['id']}?stream=true")).text)
    assert told[-1]["type"] == "response.cancelled"
    done = await until_over(http, (await made(http))["id"])
    assert (await http.post(f"{PATH}/{done['id']}/cancel")).json() == done


async def test_a_deleted_one_is_gone_and_ended(http: httpx.AsyncClient) -> None:
    left = await gauge(http, LEFT)
    first = await made(http, **ENDLESS)
    following = asyncio.create_task(http.get(f"{PATH}/{first['id']}?stream=true"))
    reply = await http.delete(f"{PATH}/{first['id']}")
    assert reply.json() == {"id": first["id"], "object": "response", "deleted": True}
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/cancel")):
        reply = await http.request(method, f"{PATH}/{first['id']}{path}")
        assert reply.status_code == 404 and reply.json()["error"]["code"] == "response_not_found"
    await asyncio.wait_for(following, 30)
    await idle(http)
    assert await gauge(http, LEFT) == left + 1


async def test_only_its_key_sees_it(http: httpx.AsyncClient) -> None:
    first = await made(http)
    for method, path in (("GET", ""), ("GET", "?stream=true"), ("POST", "/cancel"), ("DELETE", "")):
        stranger = {"authorization": f"Bearer {KEYS[1]}"}
        reply = await http.request(method, f"{PATH}/{first['id']}{path}", headers=stranger)
        assert reply.status_code == 404, reply.text
    assert (await until_over(http, first["id"]))["status"] == "completed"


@pytest.mark.parametrize(
    ("fields", "status", "word"),
    [
        ({"store": False}, 400, "'store'"),
        ({"background": "yes"}, 400, "background"),
        ({"temperature": 9}, 400, "temperature"),
        ({"what": 1}, 400, "what"),
        ({"model": "other"}, 404, "other"),
    ],
)
async def test_what_is_wrong_is_told_at_once(
    http: httpx.AsyncClient, fields: dict[str, Any], status: int, word: str
) -> None:
    before = await gauge(http, "qserve_gateway_background_bytes")
    reply = await http.post(PATH, json={**ASK, **fields})
    assert reply.status_code == status and word in reply.json()["error"]["message"]
    assert await gauge(http, "qserve_gateway_background_bytes") == before


@pytest.mark.parametrize(
    "query",
    ["starting_after=1", "stream=yes", "stream=true&starting_after=-1", "include=a", "stream=true&starting_after=x"],
)
async def test_a_wrong_query_is_refused(http: httpx.AsyncClient, query: str) -> None:
    first = await made(http)
    assert (await http.get(f"{PATH}/{first['id']}?{query}")).status_code == 400


async def test_what_the_worker_refuses_has_failed_with_its_words(http: httpx.AsyncClient) -> None:
    last = await until_over(http, (await made(http, input="x " * 3000))["id"])
    assert last["status"] == "failed" and last["error"]["code"] == "context_length_exceeded"


async def test_a_deadline_holds_for_it_too(http: httpx.AsyncClient) -> None:
    reply = await http.post(PATH, json=ENDLESS, headers={DEADLINE: "60"})
    assert reply.status_code in (200, 503), reply.text
    if reply.status_code == 200:
        last = await until_over(http, reply.json()["id"])
        assert last["status"] == "failed" and last["error"]["code"].startswith("deadline_")
    reply = await http.post(PATH, json=ASK, headers={DEADLINE: "soon"})
    assert reply.status_code == 400 and DEADLINE in reply.text
    await idle(http)


async def test_a_full_queue_refuses_it_as_any_request(worker: WorkerStatus) -> None:
    async with client_of(worker, max_queue=1) as http:
        begun = []
        while (reply := await http.post(PATH, json=ENDLESS)).status_code == 200:
            begun.append(reply.json()["id"])
        assert reply.status_code == 429 and reply.json()["error"]["code"] == "queue_full"
        assert reply.headers["retry-after"]
        assert len(begun) > 8, "eight slots of one client, and a queue"
        for response_id in begun:
            await http.delete(f"{PATH}/{response_id}")
        await idle(http)
        assert await gauge(http, "qserve_gateway_background_bytes") == 0


async def test_memory_is_bounded_and_what_ended_goes_first(worker: WorkerStatus) -> None:
    async with client_of(worker, max_responses_bytes=400_000) as http:
        first = await until_over(http, (await made(http))["id"])
        longest = await until_over(http, (await made(http, **ENDLESS))["id"])
        assert longest["status"] == "failed" and longest["error"]["code"] == "background_full"
        assert (await http.get(f"{PATH}/{first['id']}")).status_code == 404
        assert 0 < await gauge(http, "qserve_gateway_background_bytes") <= 400_000
        running = await asyncio.gather(*(http.post(PATH, json=ENDLESS) for _ in range(12)))
        full = [reply for reply in running if reply.status_code != 200]
        assert full and {reply.json()["error"]["code"] for reply in full} == {"background_full"}
        for reply in running:
            if reply.status_code == 200:
                await http.delete(f"{PATH}/{reply.json()['id']}")
        await idle(http)


async def test_each_is_counted_as_one_request_of_its_model(worker: WorkerStatus) -> None:
    async with client_of(worker) as http:
        await until_over(http, (await made(http))["id"])
        text = (await http.get("/metrics")).text
    assert 'requests_total{model="m",route="/v1/responses",status="200"} 1.0' in text
    assert sum('route="/v1/responses"' in line for line in text.splitlines()) == 1
    assert 'generation_tokens_total{model="m"}' in text


async def test_the_official_client(worker: WorkerStatus) -> None:
    server = build_server(build_gateway(GatewaySettings(keys=KEYS), [worker]), "127.0.0.1", 0, drain_timeout_s=1)
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    asked: Any = {"model": "m", "input": "What is 12+30?", "temperature": 0, "background": True}
    async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key=KEYS[0]) as client:
        seen, response_id = [], ""
        stream: Any = await client.responses.create(**asked, stream=True)
        async for event in stream:
            seen.append(event)
            response_id = response_id or event.response.id
            if len(seen) == 4:
                break
        await stream.close()
        resumed: Any = await client.responses.retrieve(
            response_id, stream=True, starting_after=seen[-1].sequence_number
        )
        seen += [event async for event in resumed]
        assert [event.sequence_number for event in seen] == list(range(len(seen)))
        done = await client.responses.retrieve(response_id)
        assert done.status == "completed" and done.output_text
        deltas = [event.delta for event in seen if event.type == "response.output_text.delta"]
        assert done.output_text == "".join(deltas)
        long = await client.responses.create(**{**asked, "max_output_tokens": 900}, extra_body={"ignore_eos": True})
        assert long.status in ("queued", "in_progress")
        assert (await client.responses.cancel(long.id)).status == "cancelled"
        assert [event.type async for event in await client.responses.retrieve(long.id, stream=True)][-1] == (
            "response.cancelled"
        )
        await client.responses.delete(long.id)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(long.id)
    server.should_exit = True
    await serving
