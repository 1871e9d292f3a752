"""An answer that breaks off anywhere is continued by another worker: the same bytes to its end."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from qserve.demo import chat_model_path
from qserve.engines.transformers.worker.api.app import build_app
from qserve.engines.transformers.worker.api.prompt_workers import prompt_workers
from qserve.wire.worker_headers import JOURNAL
from tests.tiny.engine.loading import running

QUESTION = [{"role": "user", "content": "What is 12+30?"}]
TOOL = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}},
}
SCHEMA = {
    "type": "object",
    "properties": {"answer": {"type": "integer"}, "why": {"type": "string", "maxLength": 12}},
    "required": ["answer", "why"],
    "additionalProperties": False,
}
RANDOM = {"temperature": 1.5, "ignore_eos": True, "max_tokens": 12}
CHATS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0, "max_tokens": 24},
    "a seed": {"seed": 7, **RANDOM},
    "no seed": RANDOM,
    "top-k, min-p and a bias": {"seed": 3, "top_k": 9, "min_p": 0.05, "logit_bias": {"20": 2.0}, **RANDOM},
    "penalties": {"seed": 1, "presence_penalty": 1.0, "frequency_penalty": 0.5, "repetition_penalty": 1.3, **RANDOM},
    "choices": {"n": 3, **RANDOM},
    "log-probabilities": {"logprobs": True, "top_logprobs": 3, "seed": 5, **RANDOM},
    "ids and usage at each token": {
        "return_token_ids": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        **RANDOM,
    },
    "a stop string over tokens": {"temperature": 0, "max_tokens": 24, "stop": ["2 = 4", "nowhere"]},
    "as many tokens as are wanted": {"temperature": 0, "min_tokens": 9, "max_tokens": 12},
    "a schema": {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}, "seed": 2},
    "a tool that must be called": {"tools": [TOOL], "tool_choice": "required", "seed": 4, "max_tokens": 40},
    "a thought that is cut": {"thinking_token_budget": 4, "seed": 6, **RANDOM, "max_tokens": 16},
}
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: ("/v1/chat/completions", {"messages": QUESTION, **fields}) for name, fields in CHATS.items()},
    "a prompt": ("/v1/completions", {"prompt": "1+1=", **RANDOM, "logprobs": 2}),
    "an echo, two prompts": ("/v1/completions", {"prompt": ["1+1=", "What"], "echo": True, "n": 2, **RANDOM}),
    "Messages": ("/v1/messages", {"messages": QUESTION, "max_tokens": 12, "temperature": 1.0}),
    "Responses": ("/v1/responses", {"input": "What is 12+30?", "max_output_tokens": 12, "temperature": 1.0}),
    "Responses with a tool": (
        "/v1/responses",
        {"input": "What is 12+30?", "tools": [{"type": "function", **TOOL["function"]}], "tool_choice": "required"},
    ),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def worker(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[httpx.AsyncClient]:
    async with running(str(chat_model_path())) as engine:
        prompts = prompt_workers(engine, tmp_path_factory.mktemp("journal") / "socket")
        await prompts.start()
        transport = httpx.ASGITransport(build_app(engine, prompts, ("m",), "key"))
        headers = {"authorization": "Bearer key", "content-type": "application/json"}
        async with httpx.AsyncClient(transport=transport, base_url="http://worker", headers=headers) as client:
            yield client
        await prompts.close()


async def stream(worker: httpx.AsyncClient, path: str, body: bytes, journal: bytes = b"") -> list[tuple[bytes, bytes]]:
    """Each event with the lines before it."""
    reply = await worker.post(path, content=body + journal, headers={JOURNAL: str(len(journal))})
    assert reply.status_code == 200, reply.text
    events = []
    for event in reply.content.removesuffix(b"\n\n").split(b"\n\n"):
        lines = [line + b"\n" for line in event.split(b"\n") if line.startswith(b":j")]
        events.append((b"".join(lines), event[sum(map(len, lines)) :] + b"\n\n"))
    return events


def text_of(events: list[tuple[bytes, bytes]]) -> bytes:
    return b"".join(event for _, event in events)


def by_choice(events: list[tuple[bytes, bytes]]) -> list[list[bytes]]:
    """Those of each choice, and the others: which choice is told first is no part of an answer."""
    parts: list[list[bytes]] = [[], [], [], [], []]
    for _, event in events:
        found = re.search(rb'"index":([0-3])', event)
        parts[4 if found is None else int(found[1])].append(event)
    return parts


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("kind", REQUESTS)
async def test_from_any_event_on_it_is_the_same(worker: httpx.AsyncClient, kind: str) -> None:
    path, fields = REQUESTS[kind]
    body = json.dumps({"model": "m", "stream": True, **fields}).encode()
    whole = await stream(worker, path, body)
    assert b'"error":{' not in text_of(whole)
    for cut in range(1, len(whole) + 1):
        journal = b"".join(lines for lines, _ in whole[:cut])
        again = await stream(worker, path, body, journal)
        assert text_of(again[:cut]) == text_of(whole[:cut]), f"broken off behind event {cut} of {len(whole)}"
        assert by_choice(again) == by_choice(whole), f"broken off behind event {cut} of {len(whole)}"
        assert all(b'"id"' not in lines for lines, _ in again)


@pytest.mark.asyncio(loop_scope="module")
async def test_what_is_no_journal_is_refused(worker: httpx.AsyncClient) -> None:
    body = json.dumps({"model": "m", "messages": QUESTION}).encode()
    for journal in (b"x", b":j{}\n", b':j{"id":"a","created":1,"seed":2}\n:j[[0]]\n'):
        reply = await worker.post("/v1/chat/completions", content=body + journal, headers={JOURNAL: str(len(journal))})
        assert (reply.status_code, reply.json()["error"]["code"]) == (400, "invalid_journal")


@pytest.mark.asyncio(loop_scope="module")
async def test_without_being_asked_it_writes_none(worker: httpx.AsyncClient) -> None:
    reply = await worker.post("/v1/chat/completions", json={"model": "m", "messages": QUESTION, "stream": True})
    assert b":j" not in reply.content
