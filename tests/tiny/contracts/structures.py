"""Structures whose numbers a grammar library might multiply by: what every engine answers to them, and how soon."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import httpx
import psutil

from qserve.units import KIB

__all__ = ["HUGE", "REPEATED", "WAYS", "answered", "cases", "own_bytes", "repetitions"]

HUGE: dict[str, Any] = {"type": "array", "items": {"type": "integer"}, "maxItems": 10**9}
REPEATED = (1, 1000, 10**6, 10**9)
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
_LIMIT_S = 30.0
_ANSWERS = (200, 400)
_OURS = ("panic", "unknown>", "backtrace", "assertion", "Traceback", ".cc:")

_TEXT: dict[str, Any] = {"prompt": "x", "max_tokens": 2}
MESSAGES = [{"role": "user", "content": "x"}]


def _whole(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": schema}, "required": ["a"], "additionalProperties": False}


def _function(schema: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "parameters": _whole(schema)}, **fields}


WAYS: dict[str, tuple[str, Callable[[dict[str, Any]], dict[str, Any]]]] = {
    "response_format": (
        "/v1/chat/completions",
        lambda schema: {
            "messages": MESSAGES,
            "max_tokens": 2,
            "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}},
        },
    ),
    "tools": (
        "/v1/chat/completions",
        lambda schema: {"messages": MESSAGES, "max_tokens": 2, "tools": [_function(schema)], "tool_choice": "required"},
    ),
    "messages": (
        "/v1/messages",
        lambda schema: {
            "messages": MESSAGES,
            "max_tokens": 2,
            "tools": [{"name": "f", "input_schema": _whole(schema)}],
        },
    ),
    "responses": (
        "/v1/responses",
        lambda schema: {
            "input": "x",
            "max_output_tokens": 16,
            "text": {"format": {"type": "json_schema", "name": "s", "schema": schema}},
        },
    ),
    "guided": ("/v1/completions", lambda schema: {"prompt": "x", "max_tokens": 2, "guided_json": schema}),
    "within a grammar": (
        "/v1/completions",
        lambda schema: {
            "prompt": "x",
            "max_tokens": 2,
            "structured_outputs": {"grammar": f"start: %json {json.dumps(schema)}"},
        },
    ),
}


def repetitions(number: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Expressions and grammars that repeat."""
    for regex in (f"a{{{number}}}", f"(ab|c){{0,{number}}}", f"(a{{1,{number}}}){{1,{number}}}b", f"[^x]{{{number},}}"):
        yield "/v1/completions", {**_TEXT, "structured_outputs": {"regex": regex}}
        schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": regex}}, "required": ["a"]}
        yield "/v1/completions", {**_TEXT, "structured_outputs": {"json": schema}}
    for grammar in (f'start: "a"{{{number}}}', f'start: x{{0,{number}}}\nx: "a" | "b"', f"start: /a{{{number}}}/"):
        yield "/v1/completions", {**_TEXT, "structured_outputs": {"grammar": grammar}}


def cases(way: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Bodies for one way in: each keyword with each number, on one of the ways each."""
    path, body = WAYS[way]
    pairs = list(itertools.product(KEYWORDS, NUMBERS))
    Random(31).shuffle(pairs)
    for keyword, number in pairs[list(WAYS).index(way) :: len(WAYS)]:
        yield path, body({**KEYWORDS[keyword], keyword: number})


def answered(post: Callable[[str, dict[str, Any]], httpx.Response], path: str, body: dict[str, Any]) -> None:
    """It is an answer or a sentence, soon."""
    began_s = time.monotonic()
    answer = post(path, body)
    text, took_s = answer.text, time.monotonic() - began_s
    assert answer.status_code in _ANSWERS, (body, text)
    assert took_s < _LIMIT_S, (body, took_s)
    assert not any(word in text for word in _OURS), (body, text)
    if answer.status_code == 400:
        assert 20 < len(answer.json()["error"]["message"]) < 600, text


def own_bytes(process: psutil.Process) -> int:
    """What a process and all that it started have allocated, in memory or swapped out.

    Not their unique memory: pages of a library are that of its last user, so that it grows when a neighbour ends.
    """
    total = 0
    for one in (process, *process.children(recursive=True)):
        lines = Path(f"/proc/{one.pid}/smaps_rollup").read_text().splitlines()
        total += sum(int(line.split()[1]) for line in lines if line.startswith(("Anonymous:", "Swap:")))
    return total * KIB
