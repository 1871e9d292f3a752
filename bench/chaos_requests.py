"""Requests of every kind, and what an answer says once ids, times and the cut of its events are left out."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

__all__ = ["KINDS", "Answer", "ask"]

_TOOL = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}},
}
_SCHEMA = {
    "type": "object",
    "properties": {"sum": {"type": "integer"}, "why": {"type": "string", "maxLength": 12}},
    "required": ["sum", "why"],
    "additionalProperties": False,
}
_CHAT, _DRAWN = "/v1/chat/completions", {"temperature": 1.3, "ignore_eos": True, "max_tokens": 24}
_SCHEMA_OF = {"type": "json_schema", "json_schema": {"name": "sum", "schema": _SCHEMA}}

KINDS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "greedy": (_CHAT, {"temperature": 0, "ignore_eos": True, "max_tokens": 32}),
    "drawn": (_CHAT, {"seed": 7, **_DRAWN, "stream_options": {"include_usage": True}}),
    "choices": (_CHAT, {"seed": 8, "n": 2, **_DRAWN}),
    "penalties": (_CHAT, {"seed": 9, "frequency_penalty": 0.5, "repetition_penalty": 1.2, **_DRAWN}),
    "schema": (_CHAT, {"seed": 2, "response_format": _SCHEMA_OF}),
    "tool": (_CHAT, {"seed": 4, "tools": [_TOOL], "tool_choice": "required", "max_tokens": 40}),
    "completion": ("/v1/completions", {"seed": 5, **_DRAWN}),
    "Messages": ("/v1/messages", {"temperature": 0, "max_tokens": 24}),
    "Responses": ("/v1/responses", {"temperature": 0, "max_output_tokens": 24}),
    "whole": (_CHAT, {"temperature": 0, "max_tokens": 24, "stream": False}),
}
"""By name, path and fields; all are streamed but the last, and each has one answer only."""

_PROMPTS = {"/v1/completions": "prompt", "/v1/responses": "input"}
# What makes an answer: texts, arguments of calls, ends, and counts. Ids and times are others in each answer; what was
# in the cache depends on the replica; the words of Responses' last events repeat those of its deltas.
_SAID = {"content", "text", "delta", "arguments", "partial_json", "name", "finish_reason", "stop_reason"}
_COUNTS = {"completion_tokens", "output_tokens"}


@dataclass(frozen=True)
class Answer:
    """Of one request.

    Attributes:
        said: by choice, all that it says; the same for the same request, however its events are cut.
        error: the code of the error that it ended with, or its status.
        began_s, ended_s: of `time.monotonic`.
    """

    said: str
    error: str
    began_s: float
    ended_s: float

    @property
    def took_s(self) -> float:
        return self.ended_s - self.began_s


async def ask(http: aiohttp.ClientSession, model: str, kind: str, question: str, user: str) -> Answer:
    """`user` makes it other bytes than those of any request before it."""
    path, fields = KINDS[kind]
    body = {"model": model, "stream": True, **fields}
    body[_PROMPTS.get(path, "messages")] = question if path in _PROMPTS else [{"role": "user", "content": question}]
    body |= {"metadata": {"user_id": user}} if kind == "Messages" else {"user": user}
    began_s = time.monotonic()
    try:
        async with http.post(path, json=body, timeout=aiohttp.ClientTimeout(total=600)) as reply:
            text = await reply.text()
            said, error = _read(text) if reply.status == 200 else ("", f"{reply.status} {_code(text)}")
    except (aiohttp.ClientError, TimeoutError) as failure:
        said, error = "", type(failure).__name__
    return Answer(said, error, began_s, time.monotonic())


def _read(text: str) -> tuple[str, str]:
    said: dict[int, list[str]] = {}
    error = ""
    for event in _events(text):
        if event.get("error"):
            error = str(event["error"].get("code") or event["error"].get("type"))
        if event.get("type", "").endswith((".done", "_added", ".added", ".completed", ".created", ".in_progress")):
            continue
        for index, part in _parts(event, 0):
            said.setdefault(index, []).append(part)
    is_stream = not text.startswith("{")
    if is_stream and not error and not text.rstrip().endswith(("[DONE]", '"}')) and '"message_stop"' not in text[-200:]:
        error = error or ("" if "response.completed" in text or "response.incomplete" in text else "no end")
    return json.dumps({index: "".join(parts) for index, parts in sorted(said.items())}), error


def _events(text: str) -> Iterator[dict[str, Any]]:
    if text.startswith("{"):
        yield json.loads(text)
        return
    for line in text.splitlines():
        if line.startswith("data: {"):
            yield json.loads(line[6:])


def _parts(value: Any, index: int) -> Iterator[tuple[int, str]]:
    """Each text within an event, with its choice."""
    if isinstance(value, list):
        for one in value:
            yield from _parts(one, index)
    elif isinstance(value, dict):
        index = value["index"] if "finish_reason" in value else index
        for name, one in value.items():
            if name in _SAID and isinstance(one, str):
                yield index, one
            elif name in _COUNTS and isinstance(one, int):
                yield -1, f" {one}"
            else:
                yield from _parts(one, index)


def _code(text: str) -> str:
    try:
        return str(json.loads(text)["error"].get("code"))
    except (ValueError, KeyError, AttributeError):
        return text[:60]
