"""A large body is checked beside the event loop: with the same result, and without holding anybody else up."""

from __future__ import annotations

import asyncio
import gc
import io
import json
import warnings
from dataclasses import replace

import psutil
import pytest

from qserve.engines.vllm.engine import ENGINE
from qserve.gateway.large_bodies import LARGE_BYTES, LargeBodies
from qserve.gateway.routes import ROUTES
from qserve.wire.engine_fields import fields_of
from qserve.wire.errors import ApiError
from qserve.worker.base import UnixAddress, WorkerFacts
from tests.processes import words
from tests.tiny.gateway.small_engine import DOCUMENT

COMPLETIONS = "/v1/completions"
HEADERS = {"content-type": "application/json"}


def _checkers():
    """The processes that check for this one."""
    return [one for one in psutil.Process().children() if "qserve.gateway.large_bodies" in " ".join(words(one))]


async def _model(bodies, body):
    async with bodies.turn_of(body) as large:
        return await large.model()


async def _read(bodies, route, fields, facts):
    async with bodies.turn_of(json.dumps(fields).encode()) as large:
        await large.model()
        return await large.read(route, facts)


async def test_the_answer_is_the_same_on_both_sides_of_the_bound(running):
    async with running() as stack:
        for size in (10, 2 * LARGE_BYTES):
            for fields, status, param in (
                ({"prompt": "x" * size}, 200, None),
                ({"prompt": "x" * size, "tempreature": 1}, 400, "tempreature"),
                ({"prompt": "x" * size, "n": 0}, 400, "n"),
                ({"prompt": [["x"]] * (size // 8)}, 400, "prompt"),
                ({"prompt": "x" * size, "model": "gpt-9"}, 404, "model"),
            ):
                async with stack.http.post(stack.url + COMPLETIONS, json={"model": "fake", **fields}) as response:
                    answer = await response.json()
                    assert response.status == status, answer
                    assert status == 200 or answer["error"]["param"].startswith(param)
            async with stack.http.post(
                stack.url + COMPLETIONS, data=io.BytesIO(b"[" * size), headers=HEADERS
            ) as response:
                assert (await response.json())["error"]["code"] in ("invalid_json", "invalid_value")


async def test_others_are_answered_while_a_large_body_is_checked(running):
    """12 MB of token ids take long to check, in one call that holds the interpreter."""
    body = json.dumps({"model": "fake", "prompt": [[1] * 2000] * 2000, "n": 0}).encode()
    async with running() as stack:
        large = asyncio.create_task(stack.http.post(stack.url + COMPLETIONS, data=io.BytesIO(body), headers=HEADERS))
        answered = 0
        while not large.done():
            async with stack.http.get(stack.url + "/health") as response:
                assert response.status == 200
            answered += 1
            await asyncio.sleep(0.005)  # who asks without a pause takes the processor from who checks
        assert (await large).status == 400
    assert answered > 20


async def test_its_process_ends_with_the_gateway_and_comes_back_after_a_fall(running):
    body = {"model": "fake", "prompt": "x" * 2 * LARGE_BYTES}
    async with running() as stack:
        assert not _checkers(), "nobody has sent a large body yet"
        async with stack.http.post(stack.url + COMPLETIONS, json=body) as response:
            assert response.status == 200
        (process,) = _checkers()
        assert process.nice() > psutil.Process().nice() or process.nice() == 19, "streams go first"
        process.kill()
        while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
            await asyncio.sleep(0.01)
        statuses = []
        for _ in range(2):
            async with stack.http.post(stack.url + COMPLETIONS, json=body) as response:
                statuses.append(response.status)
        assert statuses[-1] == 200
    assert not _checkers()


async def test_an_engines_own_fields_are_known_there_too():
    route = next(route for route in ROUTES if route.path == "/v1/chat/completions")
    facts = WorkerFacts(
        "chat",
        ("big",),
        UnixAddress("x"),
        "",
        1,
        1,
        wire=ENGINE.wire,
        engine="vllm",
        request_fields=fields_of(DOCUMENT),
    )
    bodies = LargeBodies()
    try:
        message = {"role": "user", "content": "x"}
        asked = await _read(bodies, route, {"messages": [message], "n": 3}, facts)
        assert (asked.model, asked.num_sequences, asked.body) == (None, 3, None)
        schema = {"type": "string", "format": "ipv4"}
        form = {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}}
        facts = replace(facts, schema_library="xgrammar")
        asked = await _read(bodies, route, {"messages": [message], **form}, facts)
        assert b'"pattern"' in asked.body and json.loads(asked.body)["messages"] == [message]
        with pytest.raises(ApiError, match="'foo' is not a field"):
            await _read(bodies, route, {"messages": [message], "foo": 3}, facts)
        assert await _model(bodies, b'{"model": "big"}') == "big"
    finally:
        await bodies.close()


async def test_all_that_is_known_of_a_request_comes_back():
    """Its salt among it: without, long prompts would be found in the cache by other keys."""
    route = next(route for route in ROUTES if route.path == "/v1/chat/completions")
    facts = WorkerFacts("chat", ("big",), UnixAddress("x"), "", 1, 4096)
    fields = {"model": "big", "messages": [{"role": "user", "content": "x"}], "cache_salt": "s", "max_tokens": 3}
    bodies = LargeBodies()
    try:
        asked = await _read(bodies, route, fields, facts)
        assert asked == route.served(facts).reader.read(json.dumps(fields).encode(), route.path, facts)
        assert asked.cache_salt == "s"
    finally:
        await bodies.close()


async def test_who_gives_up_waiting_leaves_the_next_ones_answer_alone():
    bodies = LargeBodies()
    try:
        waiting = [
            asyncio.create_task(_model(bodies, json.dumps({"model": str(number)}).encode())) for number in range(6)
        ]
        await asyncio.sleep(0)
        for one in waiting[::2]:
            one.cancel()
        assert await asyncio.gather(*waiting[1::2]) == ["1", "3", "5"]
    finally:
        await bodies.close()


async def test_an_idle_process_ends_and_a_new_one_answers(monkeypatch):
    monkeypatch.setattr("qserve.gateway.large_bodies._IDLE_S", 0.05)
    bodies = LargeBodies()
    try:
        for name in ("a", "b"):
            assert await _model(bodies, json.dumps({"model": name}).encode()) == name
            async with asyncio.timeout(60):
                while _checkers():
                    await asyncio.sleep(0.02)
    finally:
        await bodies.close()


async def test_a_process_that_was_told_to_end_is_waited_for():
    bodies = LargeBodies()
    await _model(bodies, b'{"model": "a"}')
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        bodies._lanes[0].process._end_if_idle()
        gc.collect()  # asyncio complains of a process that runs and that nobody holds
    await bodies.close()
    assert not told and not _checkers()


async def test_large_bodies_do_not_wait_for_huge_ones(running):
    """Each huge one takes a good part of a second; 200 kB of text take milliseconds."""
    huge = json.dumps({"model": "fake", "prompt": [[1] * 2000] * 2000, "n": 0}).encode()
    async with running() as stack:
        post = stack.http.post
        valid = {"model": "fake", "prompt": "x" * 200_000}
        async with post(stack.url + COMPLETIONS, json=valid) as response:  # its process runs
            assert response.status == 200
        waiting = [
            asyncio.create_task(post(stack.url + COMPLETIONS, data=io.BytesIO(huge), headers=HEADERS)) for _ in range(3)
        ]
        await asyncio.sleep(0.1)
        async with post(stack.url + COMPLETIONS, json=valid) as response:
            assert response.status == 200
        assert not all(one.done() for one in waiting), "the huge ones were no obstacle"
        assert {response.status for response in await asyncio.gather(*waiting)} == {400}


async def test_a_million_unknown_names_cost_no_more_than_one(running):
    body = b'{"model": "fake", "prompt": "x", ' + b",".join(b'"k%d": 1' % n for n in range(1_000_000)) + b"}"
    async with (
        running() as stack,
        asyncio.timeout(60),
        stack.http.post(stack.url + COMPLETIONS, data=io.BytesIO(body), headers=HEADERS) as response,
    ):
        assert response.status == 400 and (await response.json())["error"]["param"] == "k0"
