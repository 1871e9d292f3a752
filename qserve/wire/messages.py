"""The turns of a conversation, as OpenAI's clients write them."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from qserve.wire.schema import Wire, type_of
from qserve.wire.tools import ToolCall

__all__ = ["ConversationMessage"]

_NO_CALLS: dict[str, Any] = {"anyOf": [{"type": "null"}, {"type": "array", "maxItems": 0}]}
_NO_REFUSAL: dict[str, Any] = {
    "anyOf": [{"type": "string"}, {"type": "array", "items": {"properties": {"type": {"const": "text"}}}}]
}
_TURN_SCHEMA: dict[str, Any] = {
    "anyOf": [
        {"required": ["role", "content"], "properties": {"content": _NO_REFUSAL, "tool_calls": _NO_CALLS}},
        {"required": ["role"], "properties": {"role": {"const": "assistant"}}},
    ]
}
MAX_TOOL_CALLS = 128


class TextPart(Wire):
    """One part of a message's content. Images and audio are refused by their `type`."""

    type: Literal["text"]
    text: str

    @model_validator(mode="before")
    @classmethod
    def _only_text(cls, data: Any) -> Any:
        if isinstance(data, dict) and isinstance(kind := data.get("type"), str) and kind != "text":
            raise PydanticCustomError(
                "part",
                "a part of type '{kind}' is not read by the transformers engine, text is; vision models read images on "
                "vLLM (--engine vllm)",
                {"kind": kind[:40]},
            )
        return data


class RefusalPart(Wire):
    """A part of an earlier answer in which the model refuses, as OpenAI's have it."""

    type: Literal["refusal"]
    refusal: str


def _kind_of_part(value: Any) -> str:
    return "refusal" if type_of(value) == "refusal" else "text"  # TextPart refuses any other by its name


Part = Annotated[
    Annotated[TextPart, Tag("text")] | Annotated[RefusalPart, Tag("refusal")], Discriminator(_kind_of_part)
]


class ConversationMessage(Wire):
    """One turn, with what OpenAI's clients send back of earlier answers. Roles are those that chat templates know."""

    model_config = ConfigDict(json_schema_extra=_TURN_SCHEMA)

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[Part], Field(fail_fast=True)] | None = None
    name: str | None = Field(None, description="harmless: the template has no place for it")
    tool_calls: Annotated[list[ToolCall], Field(max_length=MAX_TOOL_CALLS, fail_fast=True)] | None = None
    tool_call_id: str | None = Field(None, description="of a tool's message; Qwen's templates go by the order")
    reasoning_content: str | None = Field(None, description="an earlier thought; the template decides what it keeps")
    reasoning: str | None = Field(None, description="vLLM's name of reasoning_content")
    refusal: str | None = Field(None, description="of an earlier answer: its text where it has no content")
    annotations: list[Any] | None = Field(None, description="harmless: comes back with an earlier answer")

    @model_validator(mode="after")
    def _fits_its_role(self) -> Self:
        """An answer may lack content: in histories of other servers the model said nothing, or a call alone."""
        parts = self.content if isinstance(self.content, list) else ()
        if self.role != "assistant":
            if self.content is None:
                raise PydanticCustomError("content", "a message of role '{role}' needs 'content'", {"role": self.role})
            if self.tool_calls:
                message = "a message of role '{role}' has no tool_calls"
                raise PydanticCustomError("tool_calls", message, {"role": self.role})
            if any(isinstance(part, RefusalPart) for part in parts):
                raise PydanticCustomError("part", "a message of role '{role}' has no refusal", {"role": self.role})
        if self.tool_calls:
            self._check_calls()
        return self

    def _check_calls(self) -> None:
        for call in self.tool_calls or ():
            _check_arguments(call)

    def _calls_for_template(self) -> list[dict[str, Any]]:
        return [_call_for_template(call) for call in self.tool_calls or ()]

    def text(self) -> str:
        """The content as one string; what the model refused with is what it said."""
        if isinstance(self.content, list):
            return "".join(part.refusal if isinstance(part, RefusalPart) else part.text for part in self.content)
        return self.content or self.refusal or ""

    def for_template(self) -> dict[str, Any]:
        """The message as chat templates expect it: `developer`, which Qwen's do not know, is `system`."""
        message: dict[str, Any] = {"role": "system" if self.role == "developer" else self.role, "content": self.text()}
        if thought := self.reasoning_content or self.reasoning:
            message["reasoning_content"] = thought
        if self.tool_calls:
            message["tool_calls"] = self._calls_for_template()
        return message


def _check_arguments(call: ToolCall) -> None:
    try:
        is_object = isinstance(json.loads(call.function.arguments or "{}"), dict)
    except (ValueError, RecursionError):
        is_object = False
    if not is_object:
        raise PydanticCustomError(
            "arguments", "'arguments' of the call '{id}' must be a JSON object written as text", {"id": call.id[:40]}
        )


def _call_for_template(call: ToolCall) -> dict[str, Any]:
    """With arguments as an object: some templates walk over them, and others write them as JSON."""
    arguments = json.loads(call.function.arguments or "{}")
    return {"id": call.id, "type": "function", "function": {"name": call.function.name, "arguments": arguments}}
