"""The client against a real HTTP server: streams, refusals and silence all end in sentences."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from qserve.ui.chat.answers import Sampling, draw_answers, reward_answers
from qserve.ui.chat.conversation import Answer, Conversation
from qserve.ui.client.api import Api, ApiFailure
from qserve.ui.client.served_models import served_models
from qserve.ui.process.local_server import check_server
from qserve.ui.settings import UISettings

SMILE = "你好 👋"


class Server:
    """An OpenAI-compatible server that keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[dict] = []
        self.left = asyncio.Event()
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/v1/reward", self._reward)
        app.router.add_get("/v1/models", self._models)
        self.runner = web.AppRunner(app, handler_cancellation=True)

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "m"}], "key": request.headers.get("authorization")})

    async def _reward(self, request: web.Request) -> web.Response:
        body = await request.json()
        return web.json_response({"data": [{"index": i, "reward": len(t)} for i, t in enumerate(body["responses"])]})

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.asked.append(body)
        if body["model"] == "refused":
            return web.json_response(
                {"error": {"message": "temperature must be at most 2", "param": "temperature"}}, status=400
            )
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        if body["model"] == "all at once":
            await response.write(b'data: {"choices": [{"delta": {"content": "x"}}]}\n\n' * 10 + b"data: [DONE]\n\n")
            return response
        # One event in two pieces, cut inside of a character.
        event = f'data: {{"choices": [{{"delta": {{"content": "{SMILE}"}}}}]}}\n\n'.encode()
        await response.write(event[:40])
        await asyncio.sleep(0.01)
        await response.write(event[40:])
        if body["model"] == "breaks":
            await response.write(b'data: {"error": {"message": "the worker died", "code": "worker_died"}}\n\n')
            return response
        if body["model"] == "endless":
            try:
                await asyncio.sleep(60)
            finally:
                self.left.set()
        await response.write(b'data: {"choices": [{"delta": {}, "finish_reason": "stop"}]}\n\n')
        await response.write(b'data: {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}\n\n')
        await response.write(b"data: [DONE]\n\n")
        return response


@pytest.fixture
async def server(tmp_path) -> AsyncIterator[tuple[Server, Api]]:
    server = Server()
    await server.runner.setup()
    socket = str(tmp_path / "api.sock")
    await web.UnixSite(server.runner, socket).start()
    api = Api(UISettings(url="http://api/v1/", api_socket=socket, api_key="sk-1"))
    yield server, api
    await api.close()
    await server.runner.cleanup()


async def drawn(api: Api, **fields) -> Answer:
    side = Sampling(**{"model": "m", **fields})
    *_, last = [one async for one in draw_answers(api, Conversation().asked("q", 1), [side], [""])]
    return last.turns[0].sides[0][0]


async def test_a_stream_becomes_an_answer_with_figures(server) -> None:
    answer = await drawn(server[1])
    assert (answer.content, answer.finish_reason) == (SMILE, "stop")
    assert (answer.prompt_tokens, answer.completion_tokens) == (3, 2)
    assert answer.ttft_ms is not None and answer.tokens_per_s is None, "one piece tells of no speed"


async def test_pieces_that_come_all_at_once_tell_of_no_speed(server) -> None:
    answer = await drawn(server[1], model="all at once")
    assert answer.content == "x" * 10 and answer.tokens_per_s is None


async def test_what_is_not_set_is_not_sent_and_seeds_differ(server) -> None:
    side = Sampling("m", seed=5, thinking=False, num_answers=3)
    async for _ in draw_answers(server[1], Conversation().asked("q", 1), [side], ["Be brief."]):
        pass
    assert sorted(body["seed"] for body in server[0].asked) == [5, 6, 7]
    first = server[0].asked[0]
    assert set(first) == {
        "model",
        "messages",
        "stream",
        "stream_options",
        "temperature",
        "seed",
        "chat_template_kwargs",
    }
    assert first["temperature"] == 0.7, "best of N needs answers that differ"
    assert (
        "temperature" not in Sampling("m").body([], 0)
        and Sampling("m", 0.0, num_answers=3).body([], 0)["temperature"] == 0
    )
    assert first["messages"][0] == {"role": "system", "content": "Be brief."}


async def test_refusals_and_breaks_are_the_servers_own_sentences(server) -> None:
    refused, broken = await drawn(server[1], model="refused"), await drawn(server[1], model="breaks")
    assert refused.error == "temperature must be at most 2"
    assert (broken.content, broken.error) == (SMILE, "the worker died")
    assert (refused.error_status, refused.error_param, broken.error_code) == (400, "temperature", "worker_died")


async def test_who_stops_listening_is_noticed_by_the_server(server) -> None:
    drawing = draw_answers(server[1], Conversation().asked("q", 1), [Sampling("endless")], [""])
    async for conversation in drawing:
        if conversation.turns[0].sides[0][0].content:
            break
    await drawing.aclose()
    await asyncio.wait_for(server[0].left.wait(), 60)


async def test_rewards_rank_answers_and_failed_ones_come_last(server) -> None:
    answers = [Answer(content="a"), Answer(error="broken"), Answer(content="long")]
    scored = await reward_answers(server[1], Conversation().asked("q", 1).answered([answers]), "r")
    assert [one.reward for one in scored.turns[0].sides[0]] == [4, 1, None]


async def test_a_server_without_qserves_routes_has_chat_alone(server) -> None:
    served = await served_models(server[1])
    assert (served.chat, served.reward, served.is_qserve, served.problem) == (("m",), (), False, "")
    assert (await server[1].get("/v1/models"))["key"] == "Bearer sk-1"


async def test_nobody_there_is_a_sentence() -> None:
    api = Api(UISettings(url="http://127.0.0.1:9"))
    with pytest.raises(ApiFailure, match=r"nothing answers at http://127\.0\.0\.1:9; is the server running") as raised:
        await api.get("/v1/models")
    assert raised.value.code == "unreachable"
    assert "nothing answers" in (await served_models(api)).problem
    await api.close()


def test_the_command_says_at_once_what_keeps_it_from_its_server() -> None:
    assert "nothing answers at http://127.0.0.1:1" in check_server(UISettings(url="http://127.0.0.1:1"))
