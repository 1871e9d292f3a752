"""A worker with vLLM's manners behind the gateway, alone and beside a reward worker."""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import replace

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from qserve.engines.vllm.engine import ENGINE
from qserve.errors import UsageError
from qserve.wire.engine_fields import fields_of
from qserve.worker.base import UnixAddress, WorkerFacts, WorkerState, WorkerStatus
from tests.tiny.gateway.small_engine import DOCUMENT, EVENTS, SmallEngine
from tests.tiny.gateway.threaded import gateway_over

KEY = "sk-client-4f6c"
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
ASKED = {"model": "big", "messages": [{"role": "user", "content": "x"}]}


@pytest.fixture
def engine(tmp_path):
    with SmallEngine(tmp_path / "e.sock").running() as small:
        yield small


@contextlib.asynccontextmanager
async def _gateway(*endpoints, **settings):
    """A gateway over these workers; gives a client with the key and the base URL."""
    async with (
        gateway_over(endpoints, keys=(KEY,), **settings) as base,
        aiohttp.ClientSession(base, headers={"authorization": f"Bearer {KEY}"}) as http,
    ):
        yield http


def _worker(engine, **changed):
    """As the supervisor leaves it when the engine is ready."""
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
            adapters=("sql",),
            request_fields=fields_of(DOCUMENT),
        ),
        WorkerState.READY,
        "",
    )
    return replace(status, facts=replace(status.facts, **changed))


def _before(engine, **settings):
    return _gateway(_worker(engine), **settings)


def _reward(tmp_path):
    """A reward worker that nobody asks here."""
    address = UnixAddress(tmp_path / "nobody.sock")
    return WorkerStatus(WorkerFacts("reward", ("rm",), address, "wk", 4, 512), WorkerState.READY, "")


async def _post(http, path, value, status=200):
    async with http.post(path, json=value) as response:
        body = await response.read()
        assert response.status == status, body
        return json.loads(body)


async def test_what_the_engine_knows_reaches_it_byte_for_byte(engine):
    tools = b'"tools":[{"type":"function","function":{"name":"x","strict":{}}}]'
    body = b'{ "model":"big",\n "messages":[{"role":"user","content":"\\u00e9 \xc3\xa9"}], ' + tools + b" }"
    async with _before(engine) as http:
        headers = {"content-type": "application/json", "x-request-id": "mine"}
        async with http.post(CHAT, data=body, headers=headers) as response:
            assert response.status == 200, await response.read()
    assert engine.asked == [(CHAT, body, "mine")]


async def test_keys_find_no_prompts_of_each_other_in_its_cache(engine):
    document = json.loads(json.dumps(DOCUMENT))
    document["components"]["schemas"]["Request"]["properties"]["cache_salt"] = {"type": "string"}
    worker = _worker(engine, request_fields=fields_of(document))
    for shared in (False, True):
        engine.asked.clear()
        async with _gateway(worker, admin_keys=("sk-other",), shared_prefix_cache=shared) as http:
            for key in (KEY, "sk-other"):
                headers = {"authorization": f"Bearer {key}"}
                for given in ({}, {}, {"cache_salt": "mine"}):
                    async with http.post(CHAT, json={**ASKED, **given}, headers=headers) as response:
                        assert response.status == 200
            (refused,) = [await _post(http, CHAT, {**ASKED, "cache_salt": ""}, 400)] if not shared else [None]
        bodies = [json.loads(body) for _, body, _ in engine.asked]
        assert [{name: body[name] for name in ASKED} for body in bodies] == [ASKED] * 6
        salts = [body.get("cache_salt") for body in bodies]
        if shared:
            assert salts == [None, None, "mine"] * 2
        else:
            assert refused["error"]["param"] == "cache_salt"
            assert salts[0] == salts[1] and salts[3] == salts[4] and len({*salts}) == 4


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (CHAT, {"tempreature": 1}, "tempreature"),
        (CHAT, {"request_id": "a"}, "request_id"),
        (CHAT, {"n": "3"}, "n"),
        (CHAT, {"messages": [{"role": "user", "content": "x", "nam": 1}]}, "messages.0.nam"),
        (CHAT, {"messages": [{"role": "robot", "content": "x"}]}, "messages.0.role"),
        (RESPONSES, {"reasoning": {"summary": "detailed"}}, "reasoning.summary"),
    ],
)
async def test_what_it_would_ignore_never_reaches_it(engine, path, fields, param):
    async with _before(engine) as http:
        error = (await _post(http, path, {**ASKED, **fields}, 400))["error"]
    assert error["param"] == param and not engine.asked


async def test_a_schema_reaches_it_in_words_that_bind_it(engine):
    schema = {"type": "string", "format": "ipv4"}
    form = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
    asked = {**ASKED, "response_format": form}
    async with _gateway(_worker(engine, schema_library="xgrammar")) as http:
        await _post(http, CHAT, asked)
        schema["uniqueItems"] = True
        error = (await _post(http, CHAT, asked, 400))["error"]
    assert error["code"] == "invalid_grammar" and "'uniqueItems'" in error["message"]
    ((_, body, _),) = engine.asked
    reached = json.loads(body)
    bound = reached["response_format"]["json_schema"].pop("schema")
    assert bound["type"] == "string" and "pattern" in bound and "format" not in bound
    form["json_schema"].pop("schema")
    assert reached == asked


async def test_errors_are_in_one_shape_on_every_route(engine):
    async with _before(engine) as http:
        error = await _post(http, CHAT, {**ASKED, "seed": 400}, 400)
        assert error == {
            "error": {"message": "no good", "type": "invalid_request_error", "param": "seed", "code": "invalid_value"}
        }
        error = (await _post(http, CHAT, {**ASKED, "seed": 500}, 500))["error"]
        assert error["code"] == "worker_error" and error["type"] == "server_error"
        async with http.post(CHAT, json={**ASKED, "seed": 503}) as response:
            assert response.status == 503 and response.headers["retry-after"] == "7"
        error = await _post(http, MESSAGES, {**ASKED, "seed": 404}, 404)
        assert error == {"type": "error", "error": {"type": "not_found_error", "message": "no good"}}
        error = await _post(http, MESSAGES, {**ASKED, "x": 1}, 400)
        assert error["error"]["type"] == "invalid_request_error" and "'x'" in error["error"]["message"]
        await _post(http, CHAT, {**ASKED, "seed": 401}, 502)  # our key was refused, not the client's


async def test_a_prompt_that_leaves_no_room_is_too_long_and_a_request_for_no_answer_is_not(engine):
    engine.refusal = "max_tokens must be at least 1, got 0."
    async with _before(engine) as http:
        for given, code in (({}, "context_length_exceeded"), ({"max_tokens": 0}, "invalid_value")):
            error = (await _post(http, CHAT, {**ASKED, **given, "seed": 400}, 400))["error"]
            assert error["code"] == code, error


@pytest.mark.parametrize("path", [MESSAGES, RESPONSES])
@pytest.mark.parametrize("size", [1, 7, 64, 0])
async def test_named_events_pass_whole_and_unchanged(engine, path, size):
    async with _before(engine) as http:
        async with http.post(path, json={**ASKED, "stream": True, "max_tokens": size}) as response:
            assert response.content_type == "text/event-stream"
            assert await response.text() == "".join(EVENTS[path])
        async with http.get("/metrics") as response:
            samples = {
                line.rpartition(" ")[0]: line.rpartition(" ")[2] for line in (await response.text()).splitlines()
            }
    assert samples['qserve_gateway_prompt_tokens_total{model="big"}'] == "5.0"
    assert samples['qserve_gateway_generation_tokens_total{model="big"}'] == "3.0"
    assert samples['qserve_gateway_stream_events_total{model="big"}'] == f"{len(EVENTS[path])}.0"
    assert samples['qserve_gateway_time_to_first_token_seconds_count{model="big"}'] == "1.0"


async def test_a_stream_that_breaks_off_ends_in_an_error_that_clients_know(engine):
    async with _before(engine) as http:
        for path, name in ((MESSAGES, "error"), (RESPONSES, "error")):
            async with http.post(path, json={**ASKED, "stream": True, "seed": 1, "max_tokens": 30}) as response:
                events = (await response.text()).removesuffix("\n\n").split("\n\n")
            assert "\n\n".join(events[:-1]) + "\n\n" == "".join(EVENTS[path][: len(events) - 1])
            first, data = events[-1].split("\n")
            value = json.loads(data.removeprefix("data: "))
            assert first == f"event: {name}" and value["type"] == "error" and "died" in value["error"]["message"]


async def test_a_route_that_the_engine_has_not_is_404_and_not_asked_for(engine):
    async with _before(engine) as http:
        error = (await _post(http, "/v1/embeddings", {"model": "big", "input": "x"}, 404))["error"]
        assert error["code"] == "route_not_served" and "/v1/embeddings" in error["message"]
        async with http.get("/openapi.json") as response:
            document = await response.json()
    assert not engine.asked and "/v1/embeddings" not in document["paths"]
    request = document["components"]["schemas"]["vllm.Request"]
    assert request["additionalProperties"] == {"type": "null"} and "metadata" in request["properties"]


async def test_a_background_response_is_kept_by_the_gateway_and_asked_for_as_any_stream(engine):
    async with _before(engine) as http:
        first = await _post(http, RESPONSES, {**ASKED, "background": True})
        assert first["status"] == "queued" and first["background"] is True
        async with http.get(f"{RESPONSES}/{first['id']}?stream=true") as response:
            text = await response.text()
        await _post(http, f"{RESPONSES}/{first['id']}/cancel", {})
    assert [path for path, _, _ in engine.asked] == [RESPONSES]
    asked = engine.asked[0]
    assert text.startswith("event: response.created\n") and "background" not in str(asked)


async def test_adapters_are_models_with_a_parent(engine):
    async with _before(engine) as http:
        async with http.get("/v1/models") as response:
            big, sql = (await response.json())["data"]
        assert (big["id"], big["root"], big["parent"]) == ("big", "big", None)
        assert (sql["id"], sql["root"], sql["parent"]) == ("sql", "sql", "big")
        await _post(http, CHAT, {**ASKED, "model": "sql"})
        async with http.get("/metrics") as response:
            assert 'qserve_gateway_requests_total{model="sql",route="/v1/chat/completions",status="200"} 1.0' in (
                await response.text()
            )
        error = (await _post(http, CHAT, {**ASKED, "model": "gpt-9"}, 404))["error"]
        assert "'big'" in error["message"] and "'sql'" in error["message"]


async def test_a_client_that_leaves_cancels_at_the_engine(engine):
    engine.go_on.clear()
    async with _before(engine) as http:
        with pytest.raises(asyncio.TimeoutError):
            await http.post(CHAT, json=ASKED, timeout=aiohttp.ClientTimeout(total=0.2))
        async with asyncio.timeout(60):
            while not engine.num_cancelled:
                await asyncio.sleep(0.01)
        engine.go_on.set()


async def test_a_worker_that_comes_back_smaller_has_fewer_places(engine):
    worker = _worker(engine, max_num_seqs=2)
    engine.go_on.clear()
    async with _gateway(worker, watch_interval_s=0.01) as http:
        worker.facts = replace(worker.facts, max_num_seqs=1)
        await asyncio.sleep(0.1)
        requests = [asyncio.create_task(_post(http, CHAT, ASKED)) for _ in range(2)]
        async with asyncio.timeout(60):
            while not engine.asked:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        assert len(engine.asked) == 1
        engine.go_on.set()
        await asyncio.gather(*requests)


async def test_two_models_are_shown_and_each_has_its_routes(engine, tmp_path):
    async with _gateway(_worker(engine), _reward(tmp_path)) as http:
        async with http.get("/v1/models") as response:
            assert [card["id"] for card in (await response.json())["data"]] == ["big", "sql", "rm"]
        error = (await _post(http, RESPONSES, {"model": "rm", "input": "x"}, 400))["error"]
        assert error["code"] == "route_not_served" and error["param"] == "model"
        assert "'rm' is a reward model" in error["message"] and "served by 'big'" in error["message"]
        error = (await _post(http, "/v1/embeddings", {"model": "big", "input": "x"}, 400))["error"]
        assert "served by 'rm'" in error["message"] and "/v1/embeddings" not in error["message"].partition("serves ")[2]
        error = (await _post(http, CHAT, {**ASKED, "model": "gpt-9"}, 404))["error"]
        assert "'big'" in error["message"] and "'rm'" in error["message"]
        await _post(http, CHAT, ASKED)
        await _post(http, "/tokenize", {"prompt": "x"})  # no model: the first that serves the route
        await _post(http, CHAT, [1], 400)
    assert [path for path, _, _ in engine.asked] == [CHAT, "/tokenize"]


async def test_a_full_model_holds_the_other_one_up_in_nothing(engine, tmp_path):
    engine.go_on.clear()
    with SmallEngine(tmp_path / "nobody.sock").running():
        async with _gateway(_worker(engine, max_num_seqs=1), _reward(tmp_path), max_queue=1) as http:
            running = [asyncio.create_task(_post(http, CHAT, ASKED)) for _ in range(2)]
            async with asyncio.timeout(60):
                while 'requests_waiting{worker="chat"} 1.0' not in await (await http.get("/metrics")).text():
                    await asyncio.sleep(0.01)
            await _post(http, CHAT, ASKED, 429)
            await _post(http, "/v1/reward", {"model": "rm", "prompt": "p", "responses": ["a", "b"]})
            engine.go_on.set()
            await asyncio.gather(*running)


async def test_planned_and_measured_memory_stand_side_by_side(engine, tmp_path):
    async def measured():
        return {"weights_bytes": 7}

    async def broken():
        raise UsageError("no such process")

    big = _worker(engine, plan={"weights_bytes": 6})
    big.memory = measured
    reward = _reward(tmp_path)
    reward.memory = broken
    async with _gateway(big, reward) as http, http.get("/v1/qserve/memory") as response:
        first, second = (await response.json())["data"]
    assert first == {
        "worker": "chat",
        "role": "chat",
        "state": "ready",
        "planned": {"weights_bytes": 6},
        "memory": {"weights_bytes": 7},
    }
    assert second["error"].endswith("its memory: no such process") and "planned" not in second


async def test_metrics_of_two_engines_are_one_exposition(engine, tmp_path):
    with SmallEngine(tmp_path / "other.sock").running() as other:
        reward = _reward(tmp_path)
        reward.facts = replace(reward.facts, address=UnixAddress(other.socket))
        async with _gateway(_worker(engine), reward) as http, http.get("/metrics") as response:
            text = await response.text()
    families = list(text_string_to_metric_families(text))
    assert len({one.name for one in families}) == len(families), "one group per family"
    (latency,) = [one for one in families if one.name == "vllm:e2e"]
    assert {sample.labels["worker"] for sample in latency.samples} == {"chat", "reward"} and len(latency.samples) == 6


async def test_a_key_may_come_as_anthropics_clients_send_it(engine):
    async with _before(engine) as http, aiohttp.ClientSession(http._base_url) as stranger:
        for headers, status in (({"x-api-key": KEY}, 200), ({"x-api-key": "wrong"}, 401), ({}, 401)):
            async with stranger.post(MESSAGES, json=ASKED, headers=headers) as response:
                assert response.status == status


async def test_an_engine_that_has_not_told_its_fields_gets_nothing(engine):
    async with _gateway(_worker(engine, request_fields=None)) as http:
        error = (await _post(http, CHAT, ASKED, 503))["error"]
    assert error["code"] == "worker_not_ready"
