"""The queue as clients meet it: bounded, in order, counted in sequences."""

from __future__ import annotations

import asyncio

import pytest

pytestmark = pytest.mark.parametrize("num_processes", [1, 2])

CHAT = "/v1/chat/completions"
WAITING = 'qserve_gateway_requests_waiting{worker="chat"}'


def _ask(stack, body):
    return asyncio.create_task(stack.http.post(stack.url + CHAT, json=body))


async def _waiting(stack, count):
    async with asyncio.timeout(60):
        while await stack.gauge(WAITING) != count:
            await asyncio.sleep(0.01)


async def test_the_queue_is_bounded_and_first_come_first_served(running, request_chat):
    async with running(max_num_seqs=1, max_queue=3) as stack:
        blocker = _ask(stack, request_chat(chunks=100, itl_ms=30))
        await stack.until(lambda seen: seen["running"] == 1)
        waiting = []
        for index in range(3):
            waiting.append(_ask(stack, request_chat(chunks=2, user=f"fifo-{index}")))
            await _waiting(stack, index + 1)
        async with stack.http.post(stack.url + CHAT, json=request_chat()) as response:
            assert response.status == 429
            assert 1 <= int(response.headers["retry-after"]) <= 60
            error = (await response.json())["error"]
            assert error["code"] == "queue_full" and error["type"] == "rate_limit_error"
        for task in (blocker, *waiting):
            response = await task
            assert response.status == 200
            await response.read()
        order = [user for user in (await stack.debug())["order"] if user.startswith("fifo-")]
        assert order[-3:] == ["fifo-0", "fifo-1", "fifo-2"]


async def test_n_counts_and_an_oversize_request_holds_nobody_up(running, request_chat):
    """The worker runs the sequences of all requests in turns: they need no slot each to be there."""
    async with running(max_num_seqs=4) as stack:
        oversize = [_ask(stack, request_chat(n=100, fault="hang")) for _ in range(2)]
        await stack.until(lambda seen: seen["running"] == 2)
        assert await stack.gauge('qserve_gateway_sequences_running{worker="chat"}') == 8
        third = _ask(stack, request_chat(n=100, chunks=1))  # of the same client
        await _waiting(stack, 1)
        for _ in range(2):
            response = await _ask(stack, request_chat(chunks=1))
            assert response.status == 200 and await response.read()
        assert await stack.gauge(WAITING) == 1
        for task in oversize:
            task.cancel()
        response = await third
        assert response.status == 200
        await response.read()


async def test_prompts_of_a_batched_completion_count(running):
    async with running(max_num_seqs=64) as stack:
        body = {"model": "fake", "prompt": [[1, 2], [3], [4]], "n": 2, "metadata": {"fault": "hang"}}
        asking = asyncio.create_task(stack.http.post(stack.url + "/v1/completions", json=body))
        await stack.until(lambda seen: seen["running"] == 1)
        assert await stack.gauge('qserve_gateway_sequences_running{worker="chat"}') == 6
        asking.cancel()
        await stack.until(lambda seen: seen["running"] == 0)


async def test_tokenizing_does_not_queue_behind_generations(running, request_chat):
    async with running(max_num_seqs=1, max_queue=0) as stack:
        blocker = _ask(stack, request_chat(fault="hang"))
        await stack.until(lambda seen: seen["running"] == 1)
        async with stack.http.post(stack.url + "/tokenize", json={"prompt": "abc"}) as response:
            assert response.status == 200
        blocker.cancel()
        await stack.until(lambda seen: seen["running"] == 0)
