"""Measuring over HTTP, against a server whose answers are known."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from qserve.client.answer import Refused
from qserve.confidence import wilson_interval
from qserve.demo.measure import measure, table, task_result
from qserve.demo.tasks import Exchange


async def _models(_: web.Request) -> web.Response:
    return web.json_response({"data": [{"id": "adder"}]})


async def _chat(request: web.Request) -> web.Response:
    """Adds any two numbers and can do nothing else."""
    if request.headers.get("Authorization") != "Bearer secret":
        raise web.HTTPUnauthorized
    body = await request.json()
    assert body["model"] == "adder"
    assert body["temperature"] == 0
    (message,) = body["messages"]
    total = sum(int(number) for number in re.findall(r"\d+", message["content"]))
    return web.json_response({"choices": [{"message": {"role": "assistant", "content": str(total)}}]})


@pytest.fixture
async def adder() -> AsyncIterator[str]:
    app = web.Application()
    app.add_routes([web.get("/v1/models", _models), web.post("/v1/chat/completions", _chat)])
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    yield f"http://{host}:{port}"
    await runner.cleanup()


async def test_counts_right_and_wrong_answers(adder: str) -> None:
    results = {r.task: r for r in await measure(adder, None, "secret", num=20, concurrency=4)}
    assert results["add_2digit"].num_right == results["add_2digit"].num_asked == 20
    assert results["add_2digit"].first_wrong is None
    assert results["reverse_words"].num_right == 0
    question, right, given = results["reverse_words"].first_wrong or ("", "", "")
    assert question and right and given == "0"
    assert "| add_2digit | 20 | 20 | 100.0 % | 83.9–100.0 % |" in table(list(results.values()))


async def test_a_refused_key_is_an_error(adder: str) -> None:
    with pytest.raises(Refused, match="401"):
        await measure(adder, None, "wrong", num=1, concurrency=1)


@pytest.mark.parametrize(("answer", "num_right"), [("42", 1), (" 42\n", 1), ("142", 0), ("42.", 0), ("", 0)])
def test_only_the_whole_answer_counts(answer: str, num_right: int) -> None:
    exchange = Exchange("add_2digit", "12+30", "What is 12+30?", "42")
    assert task_result("add_2digit", [exchange], [answer]).num_right == num_right


def test_wilson_interval() -> None:
    # Wilson's interval as tabulated in Newcombe (1998), Statistics in Medicine 17, table I: 81 of 263 and 15 of 148.
    assert wilson_interval(81, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert wilson_interval(15, 148) == pytest.approx((0.0624, 0.1605), abs=5e-5)
    assert wilson_interval(0, 0) == (0.0, 1.0)
