"""A stream of vLLM that breaks off anywhere is continued by a server: the same events to its end."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from qserve.engines.vllm.launch.plugins.replayed_tokens import REPLAYED
from qserve.wire.worker_headers import JOURNAL
from tests.tiny.engine.test_journal import QUESTION, SCHEMA, TOOL, by_choice, text_of
from tests.tiny.serving.served import Service
from tests.tiny.serving.vllm_processes import command, the

_SAID = re.compile(
    rb'"(content|text|delta|arguments|partial_json|logprob|finish_reason)":\s*("(?:[^"\\]|\\.)*"|[-\d.]+)'
)
RANDOM = {"temperature": 1.5, "ignore_eos": True, "max_tokens": 10}
CHATS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0, "max_tokens": 20},
    "a seed": {"seed": 7, **RANDOM},
    "no seed": RANDOM,
    "top-k, min-p and a bias": {"seed": 3, "top_k": 9, "min_p": 0.05, "logit_bias": {"20": 2.0}, **RANDOM},
    "penalties": {"seed": 1, "presence_penalty": 1.0, "frequency_penalty": 0.5, "repetition_penalty": 1.3, **RANDOM},
    "bad words": {"seed": 1, "bad_words": ["4"], **RANDOM},
    "choices": {"n": 2, "seed": 8, **RANDOM},
    "log-probabilities": {"logprobs": True, "top_logprobs": 3, "seed": 5, **RANDOM},
    "ids and usage at each token": {
        "seed": 9,
        "return_token_ids": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        **RANDOM,
    },
    "a stop string over tokens": {"temperature": 0, "max_tokens": 24, "stop": ["2 = 4", "nowhere"]},
    "as many tokens as are wanted": {"temperature": 0, "min_tokens": 9, "max_tokens": 12},
    "a schema": {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}, "seed": 2},
    "a tool that must be called": {"tools": [TOOL], "tool_choice": "required", "seed": 4, "max_tokens": 40},
    "a tool that may be called": {"tools": [TOOL], "temperature": 0, "max_tokens": 24},
    "a thought": {"chat_template_kwargs": {"enable_thinking": True}, "seed": 6, "max_tokens": 24},
    "a thought that is cut": {"thinking_token_budget": 4, "seed": 6, **RANDOM, "max_tokens": 16},
}
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: ("/v1/chat/completions", {"messages": QUESTION, **fields}) for name, fields in CHATS.items()},
    "a prompt": ("/v1/completions", {"prompt": "1+1=", "seed": 2, **RANDOM, "logprobs": 2}),
    "two prompts": ("/v1/completions", {"prompt": ["1+1=", "What"], "seed": 3, **RANDOM}),
    "Messages": ("/v1/messages", {"messages": QUESTION, "max_tokens": 12, "temperature": 0}),
    "Responses": ("/v1/responses", {"input": "What is 12+30?", "max_output_tokens": 12, "temperature": 0}),
    "Responses with a tool": (
        "/v1/responses",
        {"input": "What is 12+30?", "tools": [{"type": "function", **TOOL["function"]}], "temperature": 0},
    ),
}


@pytest.fixture(scope="module")
def worker(service: Service) -> Iterator[httpx.Client]:
    """vLLM's server itself, behind the gateway's back."""
    process = the(service, "api")
    socket = re.search(r"--uds (\S+)", command(process))
    assert socket is not None
    transport = httpx.HTTPTransport(uds=str(Path(socket[1])))
    headers = {"authorization": f"Bearer {process.environ()['VLLM_API_KEY']}", "content-type": "application/json"}
    with httpx.Client(transport=transport, base_url="http://worker", headers=headers, timeout=60) as client:
        yield client


def stream(worker: httpx.Client, path: str, body: bytes, journal: bytes = b"") -> list[tuple[bytes, bytes]]:
    """Each event with the lines before it."""
    headers = {JOURNAL: str(len(journal)), "x-request-id": "of-the-test"}
    reply = worker.post(path, content=body + journal, headers=headers)
    assert reply.status_code == 200, reply.text
    events = []
    for event in reply.content.removesuffix(b"\n\n").split(b"\n\n"):
        lines = [line + b"\n" for line in event.split(b"\n") if line.startswith(b":j")]
        events.append((b"".join(lines), event[sum(map(len, lines)) :] + b"\n\n"))
    return events


def said(events: list[tuple[bytes, bytes]]) -> list[dict[bytes, bytes]]:
    """What each choice says in each field, however vLLM cuts it into events: a busy server puts tokens together."""
    choices = []
    for choice in by_choice(events):
        fields: dict[bytes, bytes] = {}
        for field, value in _SAID.findall(settled(b"".join(choice))):
            fields[field] = fields.get(field, b"") + (value[1:-1] if value.startswith(b'"') else b" " + value)
        choices.append(fields)
    return choices


def settled(event: bytes) -> bytes:
    """Without the last digits of figures, and the times at which an answer ended."""
    event = re.sub(rb'"completed_at":[\d.]+', b"", event)
    return re.sub(rb"(-?\d+\.\d{3})\d*(?:e-?\d+)?", rb"\1", event)


@pytest.mark.parametrize("kind", REQUESTS)
def test_from_any_event_on_it_is_the_same(worker: httpx.Client, kind: str) -> None:
    path, fields = REQUESTS[kind]
    body = json.dumps({"model": "demo", "stream": True, **fields}).encode()
    whole = stream(worker, path, body)
    assert b'"error":' not in text_of(whole).replace(b'"error":null', b"")
    is_exact = not whole[0][0].startswith(b":j~")
    assert is_exact == ("logprobs" not in fields)
    for cut in range(1, len(whole) + 1):
        journal = b"".join(lines for lines, _ in whole[:cut])
        again = stream(worker, path, body, journal)
        had, now = text_of(whole[:cut]), text_of(again[:cut])
        assert now == had if is_exact else settled(now) == settled(had), f"broken off behind event {cut}"
        if "seed" in fields or fields.get("temperature") == 0:
            assert said(again) == said(whole), f"broken off behind event {cut} of {len(whole)}"
        assert not any(lines for lines, _ in again[:cut]), "what is known was noted twice"


def test_other_tokens_are_an_error(worker: httpx.Client) -> None:
    """Where the first server had a token that this one ends before."""
    path, fields = REQUESTS["greedy"]
    body = json.dumps({"model": "demo", "stream": True, **fields, "max_tokens": 3}).encode()
    whole = stream(worker, path, body)
    journal = b"".join(lines for lines, _ in whole)
    shorter = body.replace(b'"max_tokens": 3', b'"max_tokens": 2')
    assert b'"error":{' in text_of(stream(worker, path, shorter, journal)).replace(b" ", b"")


@pytest.mark.parametrize("is_stream", [True, False])
def test_a_client_names_no_known_tokens(worker: httpx.Client, is_stream: bool) -> None:
    """They would be forced, and one that is no token would end the engine."""
    greedy = {"model": "demo", "prompt": "1+1=", "temperature": 0, "max_tokens": 3, "stream": is_stream}
    asked = worker.post("/v1/completions", json={**greedy, "vllm_xargs": {REPLAYED: ["a"]}})
    assert asked.status_code == 200
    usual = worker.post("/v1/completions", json=greedy)
    texts = [re.findall(r'"text":"([^"]*)"', reply.text) for reply in (asked, usual)]
    assert texts[0] == texts[1] and texts[0]
