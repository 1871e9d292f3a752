"""x-qserve-deadline-ms as clients meet it: refused at once, refused while it waits, cancelled while it runs."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

pytestmark = pytest.mark.parametrize("num_processes", [1, 2])

CHAT = "/v1/chat/completions"
WAITING = 'qserve_gateway_requests_waiting{worker="chat"}'
MISSED = 'qserve_gateway_deadlines_missed_total{{code="deadline_{}",model="fake"}}'
BODIES = {
    CHAT: {"messages": [{"role": "user", "content": "x"}], "max_tokens": 9},
    "/v1/completions": {"prompt": "x", "max_tokens": 9},
    "/v1/responses": {"input": "x", "max_output_tokens": 16},
    "/v1/messages": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 9},
}


def _within(ms):
    return {"x-qserve-deadline-ms": str(ms)}


async def _ask(stack, body, headers, path=CHAT):
    """Status, headers, body, and how long it took."""
    began_s = time.perf_counter()
    async with stack.http.post(stack.url + path, json=body, headers=headers) as response:
        return response.status, response.headers, await response.read(), time.perf_counter() - began_s


async def _end(stack, blocker):
    blocker.cancel()
    await asyncio.gather(blocker, return_exceptions=True)
    await stack.until(lambda seen: seen["running"] == 0)


async def _error(stack, body, headers, path=CHAT):
    status, given, data, took_s = await _ask(stack, body, headers, path)
    return status, given, json.loads(data)["error"], took_s


async def test_a_value_that_is_no_time_is_refused(running, request_chat):
    async with running() as stack:
        for path, body in BODIES.items():
            status, _, error, _ = await _error(stack, {"model": "fake", **body}, _within("soon"), path)
            assert status == 400 and "x-qserve-deadline-ms is 'soon'" in error["message"]
        assert (await _ask(stack, request_chat(stream=False), _within(60_000)))[0] == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_what_runs_is_cancelled_and_its_slot_is_free(running, request_chat, stream):
    async with running(max_num_seqs=1) as stack:
        before = await stack.gauge(MISSED.format("exceeded"))
        asked = request_chat(stream=stream, chunks=1000, itl_ms=20)
        status, _, data, took_s = await _ask(stack, asked, _within(400))
        assert 0.35 < took_s < 5
        if stream:
            *events, last, end = data.decode().split("\n\n")
            assert status == 200 and len(events) > 5 and end == ""
            error = json.loads(last.removeprefix("data: "))["error"]
        else:
            assert status == 504
            error = json.loads(data)["error"]
        assert (error["code"], error["type"]) == ("deadline_exceeded", "server_error")
        assert "max_tokens" in error["message"]
        await stack.until(lambda seen: seen["running"] == 0)
        assert (await _ask(stack, request_chat(chunks=1), {}))[0] == 200
        async with asyncio.timeout(10):
            while await stack.gauge(MISSED.format("exceeded")) != before + 1:
                await asyncio.sleep(0.05)


@pytest.mark.parametrize("path", BODIES)
async def test_who_waits_is_refused_when_the_time_is_over(running, request_chat, path):
    async with running(max_num_seqs=1) as stack:
        blocker = asyncio.create_task(_ask(stack, request_chat(fault="hang"), {}))
        await stack.until(lambda seen: seen["running"] == 1)
        status, headers, error, took_s = await _error(stack, {"model": "fake", **BODIES[path]}, _within(300), path)
        assert status == 503 and headers["retry-after"] == "1" and 0.25 < took_s < 5
        assert "300 ms of x-qserve-deadline-ms" in error["message"]
        assert error["type" if path == "/v1/messages" else "code"] in ("overloaded_error", "deadline_unreachable")
        assert await stack.gauge(WAITING) == 0
        assert (await stack.debug())["running"] == 1
        await _end(stack, blocker)


async def test_what_the_pace_is_too_slow_for_is_refused_at_once(running, request_chat):
    async with running() as stack:
        measured = request_chat(chunks=20, ttft_ms=100, itl_ms=25, stream_options={"include_usage": True})
        assert (await _ask(stack, measured, {}))[0] == 200
        asked = (await stack.debug())["requests"]
        long = {**request_chat(chunks=2), "max_tokens": 2000}
        status, headers, error, took_s = await _error(stack, long, _within(5000))
        assert status == 503 and took_s < 4 and int(headers["retry-after"]) >= 1
        assert error["code"] == "deadline_unreachable"
        for part in ("s to the first token", "s for max_tokens of 2000", "ask for at most"):
            assert part in error["message"]
        assert (await stack.debug())["requests"] == asked, "the worker was not asked"
        assert (await _ask(stack, {**long, "max_tokens": 20}, _within(5000)))[0] == 200
        assert (await _ask(stack, request_chat(chunks=2), _within(5000)))[0] == 200, "no max_tokens, no length"


async def test_what_is_left_must_hold_the_answer(running, request_chat):
    async with running(max_num_seqs=1) as stack:
        measured = request_chat(chunks=20, itl_ms=25, stream_options={"include_usage": True})
        assert (await _ask(stack, measured, {}))[0] == 200
        blocker = asyncio.create_task(_ask(stack, request_chat(fault="hang"), {}))
        await stack.until(lambda seen: seen["running"] == 1)
        answer = {**request_chat(chunks=2), "max_tokens": 60}
        status, _, error, took_s = await _error(stack, answer, _within(4000))
        assert status == 503 and 0.5 < took_s < 3.5, "1.5 s of them are the answer's"
        assert "still waits for a slot and takes about" in error["message"]
        await _end(stack, blocker)


async def test_missed_deadlines_are_told_from_the_start(running):
    async with running() as stack, stack.http.get(f"{stack.url}/metrics") as response:
        text = await response.text()
        for code in ("unreachable", "exceeded"):
            assert f"{MISSED.format(code)} 0.0" in text
