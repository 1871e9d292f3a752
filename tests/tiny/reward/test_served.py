"""`qserve up --model demo --reward …`: chat and reward behind one port, each protocol through the gateway."""

from __future__ import annotations

import json
import re
from pathlib import Path

import httpx
import pytest
from tokenizers import Tokenizer

from qserve.bench.connection import Address
from qserve.bench.counting import counter_of
from tests.dashboard import METRICS, samples_of
from tests.tiny.gateway.fuzz import fuzzed
from tests.tiny.reward.host import ANSWERS, CASES, MODEL, PROMPT, Caller
from tests.tiny.serving.served import Service


@pytest.fixture(scope="module")
def service(both: Service) -> Service:
    return both


@pytest.mark.parametrize("case", CASES)
def test_every_protocol_goes_through_the_gateway(case: str, caller: Caller, expected: list[float]) -> None:
    # The served body is in the checkpoint's own dtype: bfloat16 to two hundredths.
    assert CASES[case](caller, PROMPT, ANSWERS) == pytest.approx(expected, abs=2e-2)


def test_the_model_decides_who_answers(caller: Caller) -> None:
    turns = [{"role": "user", "content": PROMPT}, {"role": "assistant", "content": ANSWERS[0]}]
    reward = caller.post("/v1/chat/completions", model=MODEL, messages=turns)
    float(reward["choices"][0]["message"]["content"])
    text = caller.post("/v1/chat/completions", model="demo", messages=turns[:1], max_tokens=4)
    assert text["model"] == "demo"
    refused = caller.client.post("/classify", json={"model": "demo", "input": "a"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "route_not_served")


def test_bad_input_is_refused_at_the_door(caller: Caller) -> None:
    refused = caller.client.post("/v1/reward", json={"prompt": PROMPT, "respnoses": ["a"]})
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "unsupported_field")
    refused = caller.client.post("/v1/reward", json={"prompt": PROMPT, "responses": [""]})
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "empty_input")


def test_a_list_s_meta_is_in_a_header(caller: Caller) -> None:
    reply = caller.client.post("/predict", json={"inputs": "one two"})
    assert isinstance(reply.json(), list)
    said = caller.post("/v1/reward", texts=["one two"])["meta"]
    assert json.loads(reply.headers["x-qserve-meta"]) == said


def test_a_load_of_rewards_counts_by_the_reward_models_own_tokenizer(service: Service) -> None:
    counter = counter_of(Address.of(service.url), "", MODEL, None)
    assert counter.is_exact, counter.source
    files = service.get(f"/v1/qserve/tokenizer/{MODEL}").json()["files"]
    assert counter.count(PROMPT) == len(Tokenizer.from_str(files["tokenizer.json"]).encode(PROMPT).ids)


def test_both_workers_are_listed_and_measured(service: Service) -> None:
    ready = service.get("/ready").json()
    assert {worker["name"] for worker in ready["workers"]} == {"chat", "reward"}
    kinds = {entry["id"]: entry["kind"] for entry in service.get("/v1/models").json()["data"]}
    assert (kinds["demo"], kinds[MODEL]) == ("chat", "reward"), "pages for chats offer no reward model"
    memory = {entry["worker"]: entry for entry in service.get("/v1/qserve/memory").json()["data"]}
    assert memory["reward"]["memory"]["weights_bytes"] > 0
    assert 'worker="reward"' in service.get("/metrics").text
    assert service.gauge("qserve_reward_texts_total") > 0


def test_the_dashboard_asks_only_for_what_is_told(service: Service, caller: Caller) -> None:
    caller.post("/v1/reward", model=MODEL, prompt=PROMPT, responses=list(ANSWERS))
    body = {"model": "demo", "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 4, "stream": True}
    caller.client.post("/v1/chat/completions", json=body).read()
    caller.client.post("/v1/reward", json={"nonsense": 1})
    told = samples_of(service.get("/metrics").text)
    of_named_keys = {"qserve_gateway_key_requests_total", "qserve_gateway_key_tokens_total"}
    of_turns = {f"qserve_gateway_model_{name}_total" for name in ("loads", "served_seconds", "waited_seconds")}
    assert {name for name in METRICS if name.startswith("qserve_")} - of_named_keys - of_turns <= told


def test_the_report_of_what_runs_is_a_page(service: Service, caller: Caller) -> None:
    caller.post("/v1/reward", model=MODEL, prompt=PROMPT, responses=list(ANSWERS))
    reply = service.get("/report")
    assert reply.status_code == 200 and reply.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in reply.headers["content-security-policy"]
    for words in ("Overview", "Memory: planned against measured", "Reward model", "texts scored", MODEL):
        assert words in reply.text
    run = service.get("/v1/qserve/report").json()["run"]
    assert f"<code>{run}</code>" in service.get(f"/report/{run[:-1]}").text, "the beginning of an id will do"
    missing = service.get("/report/1999")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "run_not_found")


def test_the_document_of_the_api_has_the_routes_of_both(service: Service) -> None:
    paths = httpx.get(f"{service.url}/openapi.json", timeout=30).json()["paths"]
    assert {"/v1/reward", "/get_reward", "/v1/score/evaluation", "/v1/completions"} <= set(paths)


def test_the_engines_take_what_the_document_allows_and_answer_as_it_says(service: Service, tmp_path: Path) -> None:
    fuzzed(service.url, tmp_path)
    served = httpx.get(f"{service.url}/metrics").text
    assert not re.findall(r'requests_total\{.*status="5\d\d".*', served)
