"""A chat's answer as Anthropic's Messages API has it: whole, or as named events."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from qserve.wire.dialects.parts import BlockDelta, BlockStart, BlockStop, Runs
from qserve.wire.sse import named_event

__all__ = ["MessagesAnswer"]

_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class MessagesAnswer:
    """One answer while it grows: `begin`, `push` each delta, `end`; each gives events, `document` the whole."""

    def __init__(self, echo: Mapping[str, Any], answer_id: str, created: int, num_prompt_tokens: int) -> None:
        self._message: dict[str, Any] = {
            "id": f"msg_{answer_id}",
            "type": "message",
            "role": "assistant",
            "model": echo["model"],
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _counts({"prompt_tokens": num_prompt_tokens, "completion_tokens": 0}),
        }
        self._runs = Runs()
        self._arguments = ""

    def begin(self) -> Iterator[bytes]:
        """Before the first delta."""
        yield named_event("message_start", {"message": self._message})

    def push(self, delta: Mapping[str, Any]) -> Iterator[bytes]:
        """What a delta of the chat adds."""
        for part in self._runs.push(delta):
            yield self._event(part)

    def end(self, finish_reason: str, stop: str | None, usage: Mapping[str, Any]) -> Iterator[bytes]:
        """The answer is over; `stop` is the stop string that ended it."""
        for part in self._runs.end():
            yield self._event(part)
        has_calls = any(block["type"] == "tool_use" for block in self._message["content"])
        reason = "stop_sequence" if stop is not None else _REASONS.get(finish_reason, "end_turn")
        if has_calls and finish_reason != "length" and stop is None:
            reason = "tool_use"
        ended = {"stop_reason": reason, "stop_sequence": stop}
        counts = _counts(usage)
        self._message |= {**ended, "usage": counts}
        yield named_event("message_delta", {"delta": ended, "usage": counts})
        yield named_event("message_stop", {})

    def document(self) -> dict[str, Any]:
        """The whole of it."""
        return self._message

    def _event(self, part: BlockStart | BlockDelta | BlockStop) -> bytes:
        blocks = self._message["content"]
        if isinstance(part, BlockStart):
            block = _block(part)
            blocks.append(block)
            self._arguments = ""
            return named_event("content_block_start", {"index": part.index, "content_block": block})
        index = len(blocks) - 1
        if isinstance(part, BlockDelta):
            return named_event("content_block_delta", {"index": index, "delta": self._add(blocks[-1], part.text)})
        if blocks[-1]["type"] == "tool_use":
            blocks[-1]["input"] = _object(self._arguments)
        return named_event("content_block_stop", {"index": index})

    def _add(self, block: dict[str, Any], text: str) -> dict[str, Any]:
        if block["type"] == "tool_use":
            self._arguments += text
            return {"type": "input_json_delta", "partial_json": text}
        name = "thinking" if block["type"] == "thinking" else "text"
        block[name] += text
        return {"type": f"{name}_delta", name: text}


def _counts(usage: Mapping[str, Any]) -> dict[str, int]:
    """Anthropic's usage: its clients add up the three counts of the prompt. Nobody asks for a cache to be created."""
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    return {
        "input_tokens": usage["prompt_tokens"] - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": usage["completion_tokens"],
    }


def _block(part: BlockStart) -> dict[str, Any]:
    if part.kind == "call":
        return {"type": "tool_use", "id": part.call_id, "name": part.name, "input": {}}
    if part.kind == "thought":
        return {"type": "thinking", "thinking": "", "signature": ""}
    return {"type": "text", "text": ""}


def _object(arguments: str) -> dict[str, Any]:
    """The arguments; {} for those of an answer that was cut off."""
    try:
        value = json.loads(arguments or "{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
