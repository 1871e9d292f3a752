"""More answers than vLLM has places: in portions they are what vLLM says to each alone, and a chat beside them runs."""

from __future__ import annotations

import concurrent.futures
import json
import time
from typing import Any

import httpx

from tests.tiny.vllm_served.conftest import NUM_PLACES

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
ASKED: dict[str, Any] = {
    "model": "demo",
    "messages": [{"role": "user", "content": "Hello"}],
    "max_tokens": 8,
    "temperature": 1.0,
    "seed": 7,
    "logprobs": True,
}
_N = 3 * NUM_PLACES


def _said(http: httpx.Client, path: str, body: dict[str, Any]) -> Any:
    answer = http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def _without_nulls(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {name: _without_nulls(one) for name, one in value.items() if one is not None}


def test_each_answer_is_the_one_of_its_seed_whole_and_streamed(http: httpx.Client) -> None:
    alone = [_said(http, CHAT, {**ASKED, "seed": 7 + index}) for index in range(_N)]
    wanted = [one["choices"][0]["message"]["content"] for one in alone]
    whole = _said(http, CHAT, {**ASKED, "n": _N})
    assert [(one["index"], one["message"]["content"]) for one in whole["choices"]] == list(enumerate(wanted))
    assert all(one["logprobs"]["content"] for one in whole["choices"])
    usage = whole["usage"]
    assert usage["prompt_tokens"] == alone[0]["usage"]["prompt_tokens"]
    assert usage["completion_tokens"] == sum(one["usage"]["completion_tokens"] for one in alone)
    texts = [""] * _N
    options = {"stream": True, "stream_options": {"include_usage": True}}
    with http.stream("POST", CHAT, json={**ASKED, "n": _N, **options}) as answer:
        events = [line[6:] for line in answer.iter_lines() if line.startswith("data: ")]
    assert events.pop() == "[DONE]"
    for event in map(json.loads, events):
        for one in event["choices"]:
            texts[one["index"]] += one["delta"].get("content") or ""
    last = json.loads(events[-1])["usage"]
    assert texts == wanted
    assert last == _without_nulls(usage)  # as vLLM writes them


def test_prompts_of_a_list_have_their_answers_in_order(http: httpx.Client) -> None:
    prompts = [f"{number} and" for number in range(2 * NUM_PLACES)]
    body = {"model": "demo", "max_tokens": 4, "temperature": 1.0, "seed": 3, "echo": True}
    wanted = [_said(http, TEXT, {**body, "prompt": one, "seed": 3 + index}) for one in prompts for index in (0, 1)]
    found = _said(http, TEXT, {**body, "prompt": prompts, "n": 2})
    assert [one["text"] for one in found["choices"]] == [one["choices"][0]["text"] for one in wanted]
    assert found["usage"]["prompt_tokens"] == sum(one["usage"]["prompt_tokens"] for one in wanted[::2])


def test_a_chat_does_not_wait_for_many_endless_answers(http: httpx.Client) -> None:
    endless = {**ASKED, "n": _N, "max_tokens": 200, "ignore_eos": True, "logprobs": False}
    with concurrent.futures.ThreadPoolExecutor() as pool:
        wide = pool.submit(_said, http, CHAT, endless)
        time.sleep(1)
        assert len(_said(http, CHAT, {**ASKED, "max_tokens": 2})["choices"]) == 1
        assert not wide.done(), "it ended first: nothing was seen"
        assert len(wide.result()["choices"]) == _N
