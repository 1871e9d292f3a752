"""The items of a Responses request, and the messages of a chat that they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, JsonValue, Tag, model_validator
from pydantic_core import PydanticCustomError

from qserve.wire.dialects.responses_tools import custom_arguments, flat_name
from qserve.wire.schema import Wire, type_of

__all__ = ["InputItem", "messages_of"]

_KINDS = (
    "message",
    "function_call",
    "function_call_output",
    "custom_tool_call",
    "custom_tool_call_output",
    "reasoning",
)
_TEXTS = frozenset({"input_text", "output_text", "text", "refusal", "reasoning_text", "summary_text"})


class ContentPart(Wire):
    """A piece of text; what OpenAI's clients send back beside it is harmless."""

    type: Literal["input_text", "output_text", "text", "refusal", "reasoning_text", "summary_text"]
    text: str = ""
    refusal: str | None = None
    annotations: list[JsonValue] | None = None
    logprobs: list[JsonValue] | None = None

    @model_validator(mode="before")
    @classmethod
    def _only_text(cls, data: Any) -> Any:
        kind = data.get("type") if isinstance(data, dict) else None
        if isinstance(kind, str) and kind not in _TEXTS:
            message = (
                "a part of type '{kind}' is not read by the transformers engine; vLLM reads images (--engine vllm)"
            )
            raise PydanticCustomError("part", message, {"kind": kind[:40]})
        return data


Parts = Annotated[list[ContentPart], Field(fail_fast=True)]


class _Item(Wire):
    """What every item may carry; it comes back from an earlier answer."""

    id: str | None = None
    status: str | None = None


class MessageItem(_Item):
    """A turn."""

    type: Literal["message"] | None = None
    role: Literal["user", "assistant", "system", "developer"]
    content: str | Parts
    phase: str | None = None


class CallItem(_Item):
    """A call of an earlier answer."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str
    namespace: str | None = None


class OutputItem(_Item):
    """What a function returned."""

    type: Literal["function_call_output"]
    call_id: str
    output: str | Parts


class CustomCallItem(_Item):
    """A call of a custom tool."""

    type: Literal["custom_tool_call"]
    call_id: str
    name: str
    input: str
    namespace: str | None = None


class CustomOutputItem(_Item):
    """What a custom tool returned."""

    type: Literal["custom_tool_call_output"]
    call_id: str
    output: str | Parts


class ReasoningItem(_Item):
    """A thought of an earlier answer; the chat template decides what it keeps. Encrypted content is not read."""

    type: Literal["reasoning"]
    summary: Parts | None = None
    content: Parts | None = None
    encrypted_content: str | None = None


class UnknownItem(Wire):
    """Refused, with a sentence."""

    @model_validator(mode="before")
    @classmethod
    def _refuse(cls, data: Any) -> Any:
        kind = str(data.get("type") if isinstance(data, dict) else type(data).__name__)[:40]
        known = f"{', '.join(_KINDS[:-1])} and {_KINDS[-1]}"
        message = "an input item of type '{kind}' is not known; there are " + known
        raise PydanticCustomError("part", message, {"kind": kind})


def _kind(value: Any) -> str:
    kind = type_of(value)
    return "message" if kind is None else kind if kind in _KINDS else "unknown"


InputItem = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[CallItem, Tag("function_call")]
    | Annotated[OutputItem, Tag("function_call_output")]
    | Annotated[CustomCallItem, Tag("custom_tool_call")]
    | Annotated[CustomOutputItem, Tag("custom_tool_call_output")]
    | Annotated[ReasoningItem, Tag("reasoning")]
    | Annotated[UnknownItem, Tag("unknown")],
    Discriminator(_kind),
]


def messages_of(given: str | Sequence[Any]) -> list[dict[str, Any]]:
    """Thought, text and calls that follow each other are one message of the assistant."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    items: Sequence[Any] = given
    messages: list[dict[str, Any]] = []
    for item in items:
        if isinstance(item, (OutputItem, CustomOutputItem)):
            messages.append({"role": "tool", "tool_call_id": item.call_id, "content": _text_of(item.output)})
        elif isinstance(item, MessageItem) and item.role != "assistant":
            messages.append({"role": item.role, "content": _text_of(item.content)})
        else:
            _add_to_answer(messages, item)
    return messages


def _add_to_answer(
    messages: list[dict[str, Any]], item: MessageItem | CallItem | CustomCallItem | ReasoningItem
) -> None:
    last = messages[-1] if messages and messages[-1]["role"] == "assistant" else None
    is_next = last is None or (isinstance(item, ReasoningItem) and (last["content"] or "tool_calls" in last))
    if last is None or is_next or (isinstance(item, MessageItem) and last["content"]):
        last = {"role": "assistant", "content": ""}
        messages.append(last)
    if isinstance(item, (CallItem, CustomCallItem)):
        arguments = item.arguments if isinstance(item, CallItem) else custom_arguments(item.input)
        function = {"name": flat_name(item.namespace, item.name), "arguments": arguments}
        last.setdefault("tool_calls", []).append({"id": item.call_id, "type": "function", "function": function})
    elif isinstance(item, ReasoningItem):
        last["reasoning_content"] = last.get("reasoning_content", "") + _text_of(item.content or item.summary or ())
    else:
        last["content"] = _text_of(item.content)


def _text_of(content: str | Sequence[ContentPart]) -> str:
    return content if isinstance(content, str) else "".join(part.text or part.refusal or "" for part in content)
