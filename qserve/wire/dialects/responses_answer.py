"""A chat's answer as OpenAI's Responses API has it: whole, or as named, numbered events."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from qserve.wire.derived_ids import derived_id
from qserve.wire.dialects.custom_input import CustomInput
from qserve.wire.dialects.parts import BlockDelta, BlockStart, BlockStop, Runs
from qserve.wire.dialects.responses_tools import flat_name
from qserve.wire.sse import named_event

__all__ = ["ResponsesAnswer"]

_DEFAULTS = {"tool_choice": "auto", "parallel_tool_calls": True, "tools": [], "truncation": "disabled"}


class ResponsesAnswer:
    """One answer while it grows: `begin`, `push` each delta, `end`; each gives events, `document` the whole."""

    def __init__(self, echo: Mapping[str, Any], answer_id: str, created: int, num_prompt_tokens: int) -> None:
        given = {name: value for name, value in echo.items() if value is not None}
        self._answer_id = answer_id
        self._response: dict[str, Any] = {
            **dict.fromkeys(echo),
            **_DEFAULTS,
            **given,
            "id": f"resp_{answer_id}",
            "object": "response",
            "created_at": created,
            "status": "in_progress",
            "output": [],
            "error": None,
            "incomplete_details": None,
            "usage": None,
            "background": False,
            "previous_response_id": None,
            "store": False,
            "text": given.get("text") or {"format": {"type": "text"}},
            "metadata": given.get("metadata") or {},
        }
        self._named = dict(_names(echo.get("tools") or ()))
        self._input = CustomInput()
        self._runs = Runs()
        self._numbers = itertools.count()
        self._is_cut = False

    def begin(self) -> Iterator[bytes]:
        """Before the first delta."""
        yield self._event("response.created", {"response": self._response})
        yield self._event("response.in_progress", {"response": self._response})

    def push(self, delta: Mapping[str, Any]) -> Iterator[bytes]:
        """What a delta of the chat adds."""
        for part in self._runs.push(delta):
            yield from self._events(part)

    def end(self, finish_reason: str, stop: str | None, usage: Mapping[str, Any]) -> Iterator[bytes]:
        """The answer is over."""
        self._is_cut = finish_reason == "length"
        for part in self._runs.end():
            yield from self._events(part)
        status = "incomplete" if self._is_cut else "completed"
        details = {"reason": "max_output_tokens"} if self._is_cut else None
        self._response |= {"status": status, "incomplete_details": details, "usage": _usage(usage)}
        yield self._event(f"response.{status}", {"response": self._response})

    def document(self) -> dict[str, Any]:
        """The whole of it."""
        return self._response

    def _events(self, part: BlockStart | BlockDelta | BlockStop) -> Iterator[bytes]:
        output = self._response["output"]
        if isinstance(part, BlockStart):
            self._input = CustomInput()
            output.append(self._item(part))
            yield self._event("response.output_item.added", {"output_index": part.index, "item": output[-1]})
            if part.kind != "call":
                empty = _part(output[-1]["type"], "")
                yield self._of_item("response.content_part.added", part=empty, **_FIRST)
                output[-1]["content"] = [empty]
        elif isinstance(part, BlockDelta):
            yield from self._more(output[-1], part)
        else:
            yield from self._ended(output[-1])

    def _more(self, item: dict[str, Any], part: BlockDelta) -> Iterator[bytes]:
        text = part.text
        if item["type"] == "function_call":
            item["arguments"] += text
            yield self._of_item("response.function_call_arguments.delta", delta=text)
        elif item["type"] == "custom_tool_call":
            if more := self._input.push(text):
                item["input"] += more
                yield self._of_item("response.custom_tool_call_input.delta", delta=more)
        elif item["type"] == "reasoning":
            item["content"][0]["text"] += text
            yield self._of_item("response.reasoning_text.delta", delta=text, **_FIRST)
        else:
            item["content"][0]["text"] += text
            item["content"][0]["logprobs"] += part.logprobs
            yield self._of_item("response.output_text.delta", delta=text, logprobs=part.logprobs, **_FIRST)

    def _ended(self, item: dict[str, Any]) -> Iterator[bytes]:
        item["status"] = "incomplete" if self._is_cut else "completed"
        if item["type"] == "function_call":
            told = {"name": item["name"], "arguments": item["arguments"]}
            yield self._of_item("response.function_call_arguments.done", **told)
        elif item["type"] == "custom_tool_call":
            yield self._of_item("response.custom_tool_call_input.done", input=item["input"])
        else:
            part = item["content"][0]
            is_thought = item["type"] == "reasoning"
            kind, more = "reasoning_text", {}
            if not is_thought:
                kind, more = "output_text", {"logprobs": part["logprobs"]}
            yield self._of_item(f"response.{kind}.done", text=part["text"], **_FIRST, **more)
            yield self._of_item("response.content_part.done", part=part, **_FIRST)
        index = len(self._response["output"]) - 1
        yield self._event("response.output_item.done", {"output_index": index, "item": item})

    def _item(self, part: BlockStart) -> dict[str, Any]:
        told: dict[str, Any] = {"status": "in_progress"}
        if part.kind == "call":
            kind, name, namespace = self._named.get(part.name, ("function", part.name, None))
            of_namespace = {} if namespace is None else {"namespace": namespace}
            told |= {"call_id": part.call_id, "name": name, **of_namespace}
            if kind == "custom":
                return {"id": self._new_id("ctc"), "type": "custom_tool_call", **told, "input": ""}
            return {"id": self._new_id("fc"), "type": "function_call", **told, "arguments": ""}
        if part.kind == "thought":
            return {"id": self._new_id("rs"), "type": "reasoning", **told, "summary": [], "content": []}
        return {"id": self._new_id("msg"), "type": "message", **told, "role": "assistant", "content": []}

    def _new_id(self, prefix: str) -> str:
        return f"{prefix}_{derived_id(self._answer_id, len(self._response['output']))}"

    def _of_item(self, event: str, /, **fields: Any) -> bytes:
        output = self._response["output"]
        return self._event(event, {"item_id": output[-1]["id"], "output_index": len(output) - 1, **fields})

    def _event(self, name: str, fields: Mapping[str, Any]) -> bytes:
        return named_event(name, {"sequence_number": next(self._numbers), **fields})


_FIRST = {"content_index": 0}


def _names(tools: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, tuple[str, str, str | None]]]:
    """What the client calls a tool, by its name to the model: its type, its own name, its namespace."""
    for tool in tools:
        if tool["type"] == "namespace":
            for inner in tool["tools"]:
                yield flat_name(tool["name"], inner["name"]), (inner["type"], inner["name"], tool["name"])
        elif "name" in tool:
            yield tool["name"], (tool["type"], tool["name"], None)


def _part(kind: str, text: str) -> dict[str, Any]:
    if kind == "reasoning":
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    thought = (usage.get("completion_tokens_details") or {}).get("reasoning_tokens", 0)
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": thought},
        "total_tokens": usage["total_tokens"],
    }
