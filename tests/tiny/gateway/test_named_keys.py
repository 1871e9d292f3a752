"""Keys with names over HTTP: what they may ask, how much, how soon, and who is counted."""

from __future__ import annotations

import asyncio
import csv
import datetime as dt
import hashlib
import io
import json
from pathlib import Path
from typing import Any

import pytest

from qserve.gateway.keys.editing import add_key, remove_key
from qserve.gateway.keys.entries import KeyEntry

pytestmark = pytest.mark.parametrize("num_processes", [1, 2])

CHAT = "/v1/chat/completions"
USAGE = {"include_usage": True}


def given(file: Path, name: str, **limits: Any) -> dict[str, str]:
    """Adds a key of this name; the header of its requests."""
    key = f"sk-{name}"
    add_key(file, KeyEntry(name, hashlib.sha256(key.encode()).hexdigest(), **limits))
    return {"authorization": f"Bearer {key}"}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    given(tmp_path / "keys.yaml", "first")
    return tmp_path / "keys.yaml"


async def asked(stack: Any, headers: dict[str, str], body: dict[str, Any], path: str = CHAT) -> tuple[int, Any, Any]:
    async with stack.http.post(stack.url + path, json=body, headers=headers) as reply:
        text = await reply.text()
        is_json = reply.headers["content-type"].startswith("application/json")
        return reply.status, json.loads(text) if is_json else text, reply.headers


async def used(stack: Any, headers: dict[str, str]) -> dict[str, Any]:
    async with stack.http.get(f"{stack.url}/v1/qserve/usage", headers=headers) as reply:
        (row,) = (await reply.json())["data"]
        return dict(row)


async def test_who_has_no_valid_key_is_refused(running, request_chat, file):
    alice = given(file, "alice")
    late = given(file, "late", expires=dt.date(2026, 1, 1))
    async with running(key_file=str(file), keys=()) as stack:
        assert (await asked(stack, alice, request_chat(chunks=1)))[0] == 200
        status, answer, _ = await asked(stack, {"authorization": "Bearer sk-mallory"}, request_chat())
        assert (status, answer["error"]["code"]) == (401, "invalid_api_key")
        status, answer, _ = await asked(stack, late, request_chat())
        assert (status, answer["error"]["code"]) == (401, "expired_api_key")
        assert "'late' expired after 2026-01-01" in answer["error"]["message"]
        status, answer, _ = await asked(stack, {"x-api-key": "sk-alice", "authorization": ""}, request_chat(chunks=1))
        assert status == 200


async def test_models_that_a_key_may_not_ask(running, request_chat, file):
    one = given(file, "one", models=("org/Fake-8B",))
    other = given(file, "other", models=("something",))
    async with running(key_file=str(file)) as stack:
        assert (await asked(stack, one, request_chat(chunks=1)))[0] == 200, "by its other name"
        status, answer, _ = await asked(stack, other, request_chat())
        assert (status, answer["error"]["code"]) == (403, "model_not_allowed")
        for headers, count in ((one, 2), (other, 0), ({}, 2)):
            async with stack.http.get(f"{stack.url}/v1/models", headers=headers) as reply:
                assert len((await reply.json())["data"]) == count
        async with stack.http.get(f"{stack.url}/v1/models/fake", headers=other) as reply:
            assert reply.status == 403
        assert (await used(stack, other))["requests"] == 0


async def test_a_minute_s_requests(running, request_chat, file):
    alice = given(file, "alice", requests_per_minute=3)
    async with running(key_file=str(file)) as stack:
        answers = [await asked(stack, alice, request_chat(chunks=1)) for _ in range(4)]
        assert [status for status, _, _ in answers] == [200, 200, 200, 429]
        _, answer, headers = answers[-1]
        assert answer["error"]["code"] == "rate_limit_exceeded" and "3 requests a minute" in answer["error"]["message"]
        assert 1 <= int(headers["retry-after"]) <= 20
        assert (await asked(stack, {}, request_chat(chunks=1)))[0] == 200, "another key's limit is not mine"
        row = await used(stack, alice)
        assert (row["name"], row["requests"], row["refused"], row["running"]) == ("alice", 3, 1, 0)


async def test_a_day_s_tokens_are_those_of_the_usage(running, request_chat, file):
    alice = given(file, "alice", tokens_per_day=40)
    async with running(key_file=str(file)) as stack:
        for chunks, stream in ((10, True), (10, False), (10, True)):
            body = request_chat(stream=stream, chunks=chunks, **({"stream_options": USAGE} if stream else {}))
            assert (await asked(stack, alice, body))[0] == 200
        row = await used(stack, alice)
        assert (row["prompt_tokens"], row["generated_tokens"], row["tokens_left_today"]) == (15, 30, 0)
        status, answer, headers = await asked(stack, alice, request_chat())
        assert (status, answer["error"]["code"]) == (429, "tokens_per_day_exceeded")
        assert "used 45 of its 40 tokens" in answer["error"]["message"] and int(headers["retry-after"]) <= 86_400
        tokens = {
            kind: await stack.gauge(f'qserve_gateway_key_tokens_total{{key="alice",kind="{kind}"}}')
            for kind in ("prompt", "generated")
        }
        assert tokens == {"prompt": 15, "generated": 30}
        assert await stack.gauge('qserve_gateway_key_requests_total{key="alice",status="429"}') == 1
        async with stack.http.get(f"{stack.url}/metrics") as reply:
            assert 'qserve_gateway_key_requests_total{key="first",status="200"} 0.0' in await reply.text()


async def test_who_leaves_gives_the_estimate_back_and_pays_what_came(running, request_chat, file):
    alice = given(file, "alice", tokens_per_day=200)
    async with running(key_file=str(file)) as stack:
        body = request_chat(chunks=1000, itl_ms=20)
        reply = await stack.http.post(stack.url + CHAT, json=body, headers=alice)
        for _ in range(3):
            await reply.content.readuntil(b"\n\n")
        row = await used(stack, alice)
        assert (row["running"], row["generated_tokens"]) == (1, 0)
        status, answer, _ = await asked(stack, alice, request_chat())
        assert (status, answer["error"]["code"]) == (429, "rate_limit_exceeded")
        assert "will need about" in answer["error"]["message"]
        reply.close()
        async with asyncio.timeout(30):
            while (row := await used(stack, alice))["running"]:
                await asyncio.sleep(0.02)
        assert row["generated_tokens"] >= 3 and row["prompt_tokens"] > 0
        assert (await asked(stack, alice, request_chat(chunks=1)))[0] == 200


async def test_who_leaves_the_queue_pays_nothing(running, request_chat, file):
    alice = given(file, "alice", tokens_per_minute=10_000)
    async with running(key_file=str(file), max_num_seqs=1) as stack:
        running_one = asyncio.create_task(asked(stack, alice, request_chat(fault="hang")))
        await stack.until(lambda seen: seen["running"] == 1)
        waiting = asyncio.create_task(asked(stack, alice, request_chat()))
        for count, task in ((2, waiting), (1, running_one), (0, None)):
            async with asyncio.timeout(30):
                while (await used(stack, alice))["running"] != count:
                    await asyncio.sleep(0.01)
            if task is not None:
                task.cancel()
        row = await used(stack, alice)
        assert (row["requests"], row["prompt_tokens"], row["generated_tokens"]) == (2, 0, 0)


async def test_a_worker_is_told_the_priority_of_a_key(running, request_chat, file):
    keys = {one: given(file, one, priority=one) for one in ("background", "normal", "high")}
    async with running(key_file=str(file)) as stack:
        for name, headers in keys.items():
            for claimed in ({}, {"x-qserve-priority": "high"}):
                assert (await asked(stack, {**headers, **claimed}, request_chat(chunks=1)))[0] == 200
                told = (await stack.debug())["last_headers"].get("x-qserve-priority", "normal")
                assert told == name, "a client can't say it of itself"


async def test_the_file_is_followed(running, request_chat, file):
    async with running(key_file=str(file)) as stack:
        bob = {"authorization": "Bearer sk-bob"}
        assert (await asked(stack, bob, request_chat()))[0] == 401
        given(file, "bob", requests_per_minute=1000)
        for wanted in (200, 401):
            async with asyncio.timeout(30):
                # Every process has to have read it: each connection may be another one's. Ten wrong keys would wait.
                seen = 0
                while seen < 3:
                    status, _, _ = await asked(stack, {**bob, "connection": "close"}, request_chat(chunks=1))
                    seen = seen + 1 if status == wanted else 0
                    await asyncio.sleep(0.7)
            if wanted == 200:
                remove_key(file, "bob")


async def test_usage_for_people_and_for_programs(running, request_chat, file):
    alice = given(file, "alice", models=("fake", "more"), expires=dt.date(2090, 1, 31))
    async with running(key_file=str(file)) as stack:
        assert (await asked(stack, alice, request_chat(chunks=4, stream_options=USAGE)))[0] == 200
        assert (await used(stack, alice))["models"] == ["fake", "more"]
        async with stack.http.get(f"{stack.url}/v1/qserve/usage?format=csv") as reply:
            rows = list(csv.DictReader(io.StringIO(await reply.text())))
        assert [row["name"] for row in rows] == ["first", "alice"]
        assert rows[1] == {**rows[1], "models": "fake more", "generated_tokens": "4", "expires": "2090-01-31"}
        async with stack.http.get(f"{stack.url}/v1/qserve/usage?format=xml") as reply:
            assert reply.status == 400
    async with running() as stack, stack.http.get(f"{stack.url}/v1/qserve/usage") as reply:
        assert (reply.status, (await reply.json())["error"]["code"]) == (404, "no_named_keys")
