"""What vLLM leaves open, ignores or says in its own way, and what the gateway makes of it."""

from __future__ import annotations

import concurrent.futures
import json

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from qserve.engines.vllm.wire import requests
from qserve.engines.vllm.wire.closed import CLOSED
from tests.dashboard import METRICS, samples_of
from tests.tiny.serving.served import Service, until
from tests.tiny.vllm_served.conftest import KEY, MAX_MODEL_LEN, NUM_PLACES

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
QUESTION = [{"role": "user", "content": "What is 17 + 25?"}]
ENDLESS = {"model": "demo", "prompt": "one two three", "max_tokens": 900, "ignore_eos": True}

_NO_CHAT = {"messages": None, "max_tokens": None}


def _asked(**fields):
    return {"model": "demo", "messages": QUESTION, "max_tokens": 8, **fields}


def _gauge(http, name):
    families = text_string_to_metric_families(http.get("/metrics").text)
    return sum(sample.value for one in families for sample in one.samples if sample.name == name)


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (CHAT, {"tempreature": 1}, "tempreature"),
        (CHAT, {"stream": True, "stream_options": {"include_usag": True}}, "stream_options.include_usag"),
        (CHAT, {"messages": [{"role": "user", "content": "x", "nam": "y"}]}, "messages.0.nam"),
        (CHAT, {"messages": [{"role": "robot", "content": "x"}]}, "messages.0.role"),
        (CHAT, {"messages": [{"role": "function", "name": "f", "content": "x"}]}, "messages.0.role"),
        (
            CHAT,
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "x", "txt": "y"}]}]},
            "messages.0.content.0.txt",
        ),
        (CHAT, {"tools": [{"type": "function", "function": {"name": "f", "params": {}}}]}, "tools.0.function.params"),
        (CHAT, {"response_format": {"type": "json_schema", "schema": {}}}, "response_format.schema"),
        (CHAT, {"structured_outputs": {"regexp": "a"}}, "structured_outputs.regexp"),
        (
            CHAT,
            {"structured_outputs": {"json": {}, "disable_any_whitespace": True}},
            "structured_outputs.disable_any_whitespace",
        ),
        (CHAT, {"priority": 1}, "priority"),
        (CHAT, {"request_id": "mine"}, "request_id"),
        (CHAT, {"kv_transfer_params": {}}, "kv_transfer_params"),
        (CHAT, {"n": "3"}, "n"),
        (CHAT, {"max_completion_tokens": 9}, "max_tokens"),
        ("/v1/completions", {"prompt": "x", "messages": None, "best_of": 2}, "best_of"),
        ("/tokenize", {"max_tokens": None, "add_special_token": True}, "add_special_token"),
        (RESPONSES, {**_NO_CHAT, "input": "x", "conversation": "c"}, "conversation"),
        (RESPONSES, {**_NO_CHAT, "input": [{"role": "user", "content": "x", "nam": 1}]}, "input.0.nam"),
    ],
)
def test_a_field_that_vllm_would_ignore_is_refused_by_name(http, path, fields, param):
    answer = http.post(path, json=_asked(**fields))
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == param and f"'{param}'" in error["message"]


@pytest.mark.parametrize(
    "fields",
    [
        {"foo": None},
        {"chat_template_kwargs": {"any": 1}},
        {"messages": [{"role": "developer", "content": "x"}]},
        {"messages": [*QUESTION, {"role": "assistant", "content": "4", "reasoning_content": "?"}, *QUESTION]},
    ],
)
def test_what_is_harmless_or_open_passes(http, fields):
    answer = http.post(CHAT, json=_asked(**fields))
    assert answer.status_code == 200, answer.text


def test_the_tables_name_only_what_vllm_has(service, http):
    """A field that a release gives up, or an unknown one that it learns, shows here."""
    schemas = http.get("/openapi.json").json()["components"]["schemas"]
    known = {
        name for one, schema in schemas.items() if one.startswith("vllm.") for name in schema.get("properties", ())
    }
    narrowed = {name.partition(".")[2] or name for name in requests.NARROWED}
    of_chats = schemas["vllm.ChatCompletionRequest"]["properties"].keys()
    assert narrowed - known == set()
    assert requests.UNREAD.keys() & (of_chats | schemas["vllm.CompletionRequest"]["properties"].keys()) == set()
    assert not requests.REFUSED.keys() & of_chats


def test_errors_of_vllm_come_in_one_shape(http):
    for fields in (
        {"temperature": -1},
        {"messages": "x"},
        {"top_logprobs": 300, "logprobs": True},
        {"tool_choice": "required"},
    ):
        answer = http.post(CHAT, json=_asked(**fields))
        error = answer.json()["error"]
        assert answer.status_code == 400 and error["type"] == "invalid_request_error"
        assert error["code"] == "invalid_value" and error["message"]
    assert http.post(CHAT, json=_asked(model="gpt-9")).json()["error"]["code"] == "model_not_found"
    error = http.post(CHAT, json=_asked(messages=[{"role": "user", "content": "x " * 3000}])).json()["error"]
    assert error["code"] == "context_length_exceeded" and str(MAX_MODEL_LEN) in error["message"]


def test_anthropics_messages(http):
    body = _asked(system=[{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}], temperature=0)
    answer = http.post(MESSAGES, json=body).json()
    assert answer["type"] == "message" and answer["content"][0]["text"] and answer["usage"]["output_tokens"] > 0
    with http.stream("POST", MESSAGES, json={**body, "stream": True}) as response:
        events = [line.removeprefix("event: ") for line in response.iter_lines() if line.startswith("event: ")]
    assert events[0] == "message_start" and events[-1] == "message_stop" and "content_block_delta" in events
    counted = http.post(f"{MESSAGES}/count_tokens", json={"model": "demo", "messages": QUESTION}).json()
    assert counted["input_tokens"] > 5
    with_key = httpx.post(f"{http.base_url}{MESSAGES}", json=body, headers={"x-api-key": KEY}, timeout=60)
    assert with_key.status_code == 200
    for wrong, status, kind in (
        ({"foo": 1}, 400, "invalid_request_error"),
        ({"max_tokens": None}, 400, "invalid_request_error"),
        ({"model": "claude"}, 404, "not_found_error"),
        ({"messages": [{"role": "robot", "content": "x"}]}, 400, "invalid_request_error"),
    ):
        answer = http.post(MESSAGES, json={**body, **wrong})
        assert answer.status_code == status, answer.text
        assert answer.json()["type"] == "error" and answer.json()["error"]["type"] == kind


def test_tokens_there_and_back(http):
    tokens = http.post("/tokenize", json={"model": "demo", "prompt": "hello 12"}).json()
    assert tokens["count"] == len(tokens["tokens"]) and tokens["max_model_len"] == MAX_MODEL_LEN
    assert http.post("/detokenize", json={"tokens": tokens["tokens"]}).json() == {"prompt": "hello 12"}
    assert http.post("/tokenize", json={"messages": QUESTION}).json()["count"] > tokens["count"]


def test_several_conversations_and_scores_of_tokens(http):
    answer = http.post(f"{CHAT}/batch", json=_asked(messages=[QUESTION, QUESTION], temperature=0)).json()
    assert [choice["message"]["content"] for choice in answer["choices"]] == ["42", "42"]
    scoring = {"model": "demo", "query": "a", "items": ["b", "c"], "label_token_ids": [5, 6]}
    assert len(http.post("/generative_scoring", json=scoring).json()["data"]) == 2


def test_what_this_model_does_not_serve_is_404_in_a_sentence(http):
    for path, body in (
        ("/v1/embeddings", {"input": "x"}),
        ("/inference/v1/generate", {"token_ids": [1]}),
        (f"{CHAT}/render", {"messages": QUESTION}),
        ("/classify", {"input": "x"}),
    ):
        answer = http.post(path, json={"model": "demo", **body})
        assert answer.status_code in (400, 404), answer.text
        assert answer.json()["error"]["code"] == "route_not_served" and path in answer.json()["error"]["message"]


def test_every_route_of_vllm_is_behind_the_key_or_closed(service, http):
    """The engine itself leaves all but /v1 open to whoever reaches it."""
    own = http.get("/openapi.json").json()["paths"]
    with httpx.Client(base_url=service.url) as stranger:
        for path in [*own, *CLOSED]:
            for method in ("GET", "POST"):
                answer = stranger.request(method, path.replace("{model}", "demo").replace("{response_id}", "resp_1"))
                assert (answer.status_code == 401) == (path != "/health"), (method, path, answer.text)
    for path in CLOSED:
        answer = http.post(path, json={})
        assert answer.status_code == 404 and answer.json()["error"]["code"] == "route_closed", path


def test_requests_of_one_id_do_not_meet(http):
    def ask(number):
        headers = {"x-request-id": "the-same"}
        body = _asked(messages=[{"role": "user", "content": f"What is {number} + 1?"}], temperature=0)
        return http.post(CHAT, json=body, headers=headers).json()["choices"][0]["message"]["content"]

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert list(pool.map(ask, [10, 20, 30, 40])) == ["11", "21", "31", "41"]


def test_a_client_that_leaves_cancels_its_request(http):
    for stream in (True, False):
        try:
            with http.stream("POST", "/v1/completions", json={**ENDLESS, "stream": stream}, timeout=1.0) as response:
                next(response.iter_raw())
        except httpx.ReadTimeout:
            pass
        until(lambda: _gauge(http, "vllm:num_requests_running") == 0, 10, "vLLM goes on generating for nobody")


def test_more_sequences_than_places_wait_in_the_gateway(http):
    body = {**ENDLESS, "n": NUM_PLACES, "max_tokens": 400}
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(http.post, "/v1/completions", json=body) for _ in range(3)]
        until(lambda: _gauge(http, "qserve_gateway_requests_waiting") >= 1, 60, "nobody waits")
        assert _gauge(http, "vllm:num_requests_running") <= NUM_PLACES
        assert all(one.result().status_code == 200 for one in waiting)


def test_metrics_and_memory(http):
    families = list(text_string_to_metric_families(http.get("/metrics").text))
    assert len({one.name for one in families}) == len(families)
    for one in families:
        for sample in one.samples:
            assert one.name.startswith("qserve_gateway") or sample.labels["worker"] == "chat"
    assert _gauge(http, "vllm:generation_tokens_total") > 0
    told = samples_of(http.get("/metrics").text)
    assert {name for name in METRICS if name.startswith("vllm:")} <= told, "the dashboard asks for them"
    (entry,) = http.get("/v1/qserve/memory").json()["data"]
    assert entry["worker"] == "chat" and entry["state"] == "ready"
    assert entry["planned"]["workload"]["max_num_seqs"] == NUM_PLACES
    assert entry["memory"]["resident_bytes"] > 0, json.dumps(entry["memory"])


def test_the_gateways_counts_are_the_clients(service: Service, http):
    before = _gauge(http, "qserve_gateway_generation_tokens_total")
    http.post(CHAT, json=_asked(temperature=0, max_tokens=16))
    http.post(MESSAGES, json=_asked(temperature=0, max_tokens=16, stream=True))
    with http.stream(
        "POST", RESPONSES, json={"input": "What is 17 + 25?", "temperature": 0, "stream": True}
    ) as response:
        response.read()
    until(lambda: _gauge(http, "qserve_gateway_generation_tokens_total") == before + 9, 60, "tokens are miscounted")
