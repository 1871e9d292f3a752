"""One service, two keys: cached prompts are each key's own, and nobody waits for the many answers of another."""

from __future__ import annotations

import concurrent.futures
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.tiny.serving.served import Service

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
KEYS = ("sk-one", "sk-other")
PROMPT = "once upon a time there was a bear " * 12
_PLACES = 6


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    keys = [argument for key in KEYS for argument in ("--api-key", key)]
    places = ("--max-num-seqs", str(_PLACES), "--kv-cache-memory-bytes", "32MiB")
    arguments = ("--model", "demo", "--no-ui", *places, *keys)
    one = Service(arguments, tmp_path_factory.mktemp("shares"))
    yield one.until_ready()
    assert one.end() == 0, one.output


@pytest.fixture(scope="module")
def clients(service: Service) -> Iterator[list[httpx.Client]]:
    some = [httpx.Client(base_url=service.url, headers={"authorization": f"Bearer {key}"}, timeout=120) for key in KEYS]
    yield some
    for one in some:
        one.close()


def _said(http: httpx.Client, path: str, **body: Any) -> Any:
    answer = http.post(path, json={"model": "demo", **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


def _num_cached(http: httpx.Client, path: str, **body: Any) -> int:
    usage = _said(http, path, **body)["usage"]
    details = usage.get("prompt_tokens_details") or usage["input_tokens_details"]
    assert isinstance(details["cached_tokens"], int)
    return int(details["cached_tokens"])


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (TEXT, {"prompt": "text " + PROMPT, "max_tokens": 2}),
        (TEXT, {"prompt": ["a " + PROMPT, "b " + PROMPT], "n": 2}),
        (CHAT, {"messages": [{"role": "user", "content": "chat " + PROMPT}], "max_tokens": 2}),
        ("/v1/responses", {"input": "response " + PROMPT, "max_output_tokens": 2}),
    ],
)
def test_a_key_finds_its_own_prompts_alone(clients: list[httpx.Client], path: str, body: dict[str, Any]) -> None:
    one, other = clients
    assert _num_cached(one, path, **body) == 0
    assert _num_cached(other, path, **body) == 0, "another key has sent it"
    assert _num_cached(one, path, **body) > 64
    assert _num_cached(one, path, **body, cache_salt="a") == 0, "without it"
    assert _num_cached(one, path, **body, cache_salt="b") == 0
    assert _num_cached(other, path, **body, cache_salt="a") == 0
    assert _num_cached(one, path, **body, cache_salt="a") > 64


@pytest.mark.parametrize("salt", ["", 5, "x" * 129, "a/b", ["x"]])
def test_a_salt_is_a_short_string(clients: list[httpx.Client], salt: Any) -> None:
    answer = clients[0].post(TEXT, json={"model": "demo", "prompt": "x", "cache_salt": salt})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "cache_salt"


def test_more_answers_than_places_are_those_of_their_seeds(clients: list[httpx.Client]) -> None:
    asked = {"prompt": "the bear", "max_tokens": 40, "temperature": 1.0, "ignore_eos": True}
    wide = _said(clients[0], TEXT, **asked, n=20, seed=7, logprobs=1)
    assert [one["index"] for one in wide["choices"]] == list(range(20))
    for index in (0, 7, 19):
        alone = _said(clients[1], TEXT, **asked, seed=7 + index)
        assert alone["choices"][0]["text"] == wide["choices"][index]["text"]
    assert wide["usage"]["completion_tokens"] == 20 * 40


def _batch(http: httpx.Client, bodies: list[dict[str, Any]]) -> str:
    lines = [
        {"custom_id": str(number), "method": "POST", "url": TEXT, "body": {"model": "demo", **body}}
        for number, body in enumerate(bodies)
    ]
    content = "".join(json.dumps(line) + "\n" for line in lines)
    file = http.post("/v1/files", files={"file": ("lines.jsonl", content)}, data={"purpose": "batch"}).json()
    asked = {"input_file_id": file["id"], "endpoint": TEXT, "completion_window": "24h"}
    return str(http.post("/v1/batches", json=asked).json()["id"])


def test_a_chat_does_not_wait_for_the_answers_of_a_batch_or_of_another_key(
    service: Service, clients: list[httpx.Client], tmp_path: Path
) -> None:
    one, other = clients
    endless = {"prompt": "the bear", "max_tokens": 900, "n": 24, "ignore_eos": True}
    batch = _batch(one, [endless] * 2)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        wide = pool.submit(_said, one, TEXT, **{**endless, "n": 12})
        deadline_s = time.monotonic() + 60
        while f'sequences_running{{worker="chat"}} {_PLACES}.0' not in one.get("/metrics").text:
            assert time.monotonic() < deadline_s, one.get("/metrics").text
            time.sleep(0.05)
        for http in (other, one):
            for _ in range(3):
                assert _said(http, TEXT, prompt="x", max_tokens=2)["choices"]
        assert not wide.done(), "it ended first: nothing was seen"
        one.post(f"/v1/batches/{batch}/cancel")
        assert len(wide.result()["choices"]) == 12
