"""Whatever number a schema holds, on whatever route: an answer or a sentence, soon, and within the worker's memory."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import psutil
import pytest

from qserve.units import MIB
from tests.tiny.serving.served import Service

NUMBERS = (0, 1, 7, 1000, 1_000_003, 10**9, 10**18, 10**40, -1, -(10**9), 0.5, 1e-9, 1 / 3, 1e300)
KEYWORDS: dict[str, dict[str, Any]] = {
    "minItems": {"type": "array", "items": {"type": "integer"}},
    "maxItems": {"type": "array", "items": {"type": "integer"}},
    "minLength": {"type": "string"},
    "maxLength": {"type": "string"},
    "minProperties": {"type": "object", "additionalProperties": {"type": "null"}},
    "maxProperties": {"type": "object", "additionalProperties": {"type": "null"}},
    "minContains": {"type": "array", "contains": {"type": "integer"}},
    "multipleOf": {"type": "number"},
    "minimum": {"type": "integer"},
    "maximum": {"type": "integer"},
    "exclusiveMinimum": {"type": "number"},
    "exclusiveMaximum": {"type": "number"},
}
_LIMIT_S, _MOST_BYTES = 30.0, 300 * MIB
_ANSWERS = (200, 400)

MESSAGES = [{"role": "user", "content": "x"}]


def _whole(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": schema}, "required": ["a"], "additionalProperties": False}


def _function(schema: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "parameters": _whole(schema)}, **fields}


WAYS: dict[str, tuple[str, Callable[[dict[str, Any]], dict[str, Any]]]] = {
    "response_format": ("/v1/chat/completions", lambda schema: {
        "messages": MESSAGES, "max_tokens": 2,
        "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}},
    }),
    "tools": ("/v1/chat/completions", lambda schema: {
        "messages": MESSAGES, "max_tokens": 2, "tools": [_function(schema)], "tool_choice": "required",
    }),
    "messages": ("/v1/messages", lambda schema: {
        "messages": MESSAGES, "max_tokens": 2, "tools": [{"name": "f", "input_schema": _whole(schema)}],
    }),
    "responses": ("/v1/responses", lambda schema: {
        "input": "x", "max_output_tokens": 16,
        "text": {"format": {"type": "json_schema", "name": "s", "schema": schema}},
    }),
    "guided": ("/v1/completions", lambda schema: {"prompt": "x", "max_tokens": 2, "guided_json": schema}),
    "within a grammar": ("/v1/completions", lambda schema: {
        "prompt": "x", "max_tokens": 2, "structured_outputs": {"grammar": f"start: %json {json.dumps(schema)}"},
    }),
}  # fmt: skip


def _repetitions(number: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Expressions and grammars that repeat."""
    for regex in (f"a{{{number}}}", f"(ab|c){{0,{number}}}", f"(a{{1,{number}}}){{1,{number}}}b", f"[^x]{{{number},}}"):
        yield "/v1/completions", {"structured_outputs": {"regex": regex}}
        schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": regex}}, "required": ["a"]}
        yield "/v1/completions", {"structured_outputs": {"json": schema}}
    for grammar in (f'start: "a"{{{number}}}', f'start: x{{0,{number}}}\nx: "a" | "b"', f"start: /a{{{number}}}/"):
        yield "/v1/completions", {"structured_outputs": {"grammar": grammar}}


@pytest.fixture
def bounded(service: Service) -> Iterator[Callable[[str, dict[str, Any]], None]]:
    """Sends a body; the worker's memory is held against what it was before the test."""
    worker = service.worker()
    assert worker is not None
    before = _bytes(worker)

    def send(path: str, body: dict[str, Any]) -> None:
        began_s = time.monotonic()
        answer = service.post(path, model="demo", **body)
        text, took_s = answer.text, time.monotonic() - began_s
        assert answer.status_code in _ANSWERS, (body, text)
        assert took_s < _LIMIT_S, (body, took_s)
        assert not any(word in text for word in ("panic", "unknown>", "backtrace", "assertion")), text
        if answer.status_code == 400:
            assert 20 < len(answer.json()["error"]["message"]) < 600, text

    yield send
    assert _bytes(worker) - before < _MOST_BYTES


def _bytes(worker: psutil.Process) -> int:
    return sum(one.memory_full_info().uss for one in (worker, *worker.children(recursive=True)))


@pytest.mark.parametrize("way", WAYS)
def test_every_numeric_keyword(way: str, bounded: Callable[[str, dict[str, Any]], None]) -> None:
    """Each keyword with each number, on one of the ways each."""
    path, body = WAYS[way]
    cases = list(itertools.product(KEYWORDS, NUMBERS))
    Random(31).shuffle(cases)
    for keyword, number in cases[list(WAYS).index(way) :: len(WAYS)]:
        bounded(path, body({**KEYWORDS[keyword], keyword: number}))


@pytest.mark.parametrize("number", [1, 1000, 10**6, 10**9])
def test_every_repetition(number: int, bounded: Callable[[str, dict[str, Any]], None]) -> None:
    for path, body in _repetitions(number):
        bounded(path, {"prompt": "x", "max_tokens": 2, **body})


def test_the_bound_is_said(service: Service) -> None:
    schema = {"type": "array", "items": {"type": "integer"}, "maxItems": 10**9}
    for path, body in WAYS.values():
        answer = service.post(path, model="demo", **body(schema))
        assert answer.status_code == 400
        assert "'maxItems' in the structure is 1,000,000,000; it can be at most 10,000" in answer.text
