"""Requests of an evaluation that runs in the background let a user's requests go before them."""

from __future__ import annotations

import asyncio

import pytest

pytestmark = pytest.mark.parametrize("num_processes", [1, 2])

CHAT = "/v1/chat/completions"
WAITING = 'qserve_gateway_requests_waiting{worker="chat"}'
BACKGROUND = {"x-qserve-priority": "background"}


def _ask(stack, body, headers=None):
    async def whole():
        async with stack.http.post(stack.url + CHAT, json=body, headers=headers or {}) as response:
            await response.read()
            return response.status

    return asyncio.create_task(whole())


async def _waiting(stack, count):
    async with asyncio.timeout(60):
        while await stack.gauge(WAITING) != count:
            await asyncio.sleep(0.01)


async def test_a_user_overtakes_an_evaluation_that_waits(running, request_chat):
    async with running(max_num_seqs=1) as stack:
        blocker = _ask(stack, request_chat(fault="hang"))
        await stack.until(lambda seen: seen["running"] == 1)
        waiting = []
        for user, headers in (("eval-1", BACKGROUND), ("eval-2", BACKGROUND), ("user-1", {}), ("user-2", {})):
            waiting.append(_ask(stack, request_chat(chunks=2, user=user), headers))
            await _waiting(stack, len(waiting))
        blocker.cancel()
        assert await asyncio.gather(*waiting) == [200] * 4
        order = [user for user in (await stack.debug())["order"] if user in ("eval-1", "eval-2", "user-1", "user-2")]
        assert order[-4:] == ["user-1", "user-2", "eval-1", "eval-2"]


async def test_an_evaluation_leaves_a_place_free_for_the_next_user(running, request_chat):
    async with running(max_num_seqs=3) as stack:
        evaluation = [_ask(stack, request_chat(fault="hang"), BACKGROUND) for _ in range(4)]
        await stack.until(lambda seen: seen["running"] == 2)
        await _waiting(stack, 2)
        assert await _ask(stack, request_chat(chunks=2)) == 200  # at once: nothing of the evaluation ended meanwhile
        assert (await stack.debug())["running"] == 2
        for task in evaluation:
            task.cancel()
        await stack.until(lambda seen: seen["running"] == 0)
