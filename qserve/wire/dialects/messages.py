"""Anthropic's Messages API: what its clients send, and the chat request that it is."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import ConfigDict, Field, JsonValue, model_validator
from pydantic_core import PydanticCustomError

from qserve.wire.agent_fields import BILLING, loaded_tools
from qserve.wire.hints import mixed_up_on
from qserve.wire.openai import MAX_MESSAGES
from qserve.wire.schema import INT64_MAX, CacheSalt, NonEmptyString, StopString, Wire
from qserve.wire.tools import MAX_TOOLS, ToolName

__all__ = ["CountTokensRequest", "MessagesRequest"]

_ELSEWHERE = "is not read by the transformers engine; vLLM reads images (--engine vllm)"
_REFUSED = {
    "mcp_servers": "the server calls no tools itself",
    "container": "the server runs no code",
    "context_management": "send only the messages that the model should read",
    "thread": "nothing is stored between requests; send the messages of the conversation",
}


class _Block(Wire):
    """Whatever may carry a mark for Anthropic's prompt cache: every prefix is cached here, so it is harmless."""

    cache_control: dict[str, JsonValue] | None = None


class TextBlock(_Block):
    """Text; `citations` come back with an earlier answer."""

    type: Literal["text"]
    text: str
    citations: list[JsonValue] | None = None


class ThinkingBlock(_Block):
    """A thought of an earlier answer; the chat template decides what it keeps."""

    type: Literal["thinking"]
    thinking: str
    signature: str | None = None


class ToolUseBlock(_Block):
    """A call of an earlier answer."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, JsonValue]
    caller: dict[str, JsonValue] | None = None


class ToolReference(_Block):
    """A tool that a search of the client has found: from here on the model is shown it."""

    type: Literal["tool_reference"]
    tool_name: str

    @property
    def text(self) -> str:
        """What the model reads of it in the search's result."""
        return f"{self.tool_name}\n"


class ToolResultBlock(_Block):
    """What a tool returned."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: str | list[Annotated[TextBlock | ToolReference, Field(discriminator="type")]] | None = None
    is_error: bool | None = None

    def text(self) -> str:
        """As the chat template is given it."""
        return self.content if isinstance(self.content, str) else _text_of(self.content or ())


Block = Annotated[TextBlock | ThinkingBlock | ToolUseBlock | ToolResultBlock, Field(discriminator="type")]
_ROLES_OF = {"thinking": "assistant", "tool_use": "assistant", "tool_result": "user"}


class Message(Wire):
    """One turn."""

    role: Literal["user", "assistant", "system"]
    content: str | Annotated[list[Block], Field(fail_fast=True)]

    @model_validator(mode="before")
    @classmethod
    def _only_known_blocks(cls, data: Any) -> Any:
        content = data.get("content") if isinstance(data, dict) else None
        for block in content if isinstance(content, list) else ():
            kind = block.get("type") if isinstance(block, dict) else None
            if kind in ("image", "document", "search_result", "redacted_thinking", "container_upload"):
                raise PydanticCustomError("part", "a block of type '{kind}' {why}", {"kind": kind, "why": _ELSEWHERE})
        return data

    @model_validator(mode="after")
    def _blocks_are_of_the_role(self) -> Self:
        for block in self.content if isinstance(self.content, list) else ():
            if _ROLES_OF.get(block.type, self.role) != self.role:
                values = {"kind": block.type, "role": self.role}
                raise PydanticCustomError("part", "a message of role '{role}' has no block '{kind}'", values)
        return self

    def to_chat(self) -> list[dict[str, Any]]:
        """The messages of a chat that it is: what tools returned goes in front of what the user says."""
        blocks = [TextBlock(type="text", text=self.content)] if isinstance(self.content, str) else self.content
        results = [
            {"role": "tool", "tool_call_id": block.tool_use_id, "content": block.text()}
            for block in blocks
            if isinstance(block, ToolResultBlock)
        ]
        texts = [block for block in blocks if isinstance(block, TextBlock)]
        message: dict[str, Any] = {"role": self.role, "content": _text_of(texts)}
        if thought := "".join(block.thinking for block in blocks if isinstance(block, ThinkingBlock)):
            message["reasoning_content"] = thought
        if calls := [_call(block) for block in blocks if isinstance(block, ToolUseBlock)]:
            message["tool_calls"] = calls
        return [*results, message] if texts or not results else results


class CustomTool(_Block):
    """A tool that the client runs."""

    name: ToolName
    type: Literal["custom"] | None = None
    description: str | None = None
    input_schema: dict[str, JsonValue]
    strict: bool | None = Field(None, description="harmless: arguments always follow the schema")
    defer_loading: bool | None = Field(None, description="true: hidden until a tool_reference names it")
    eager_input_streaming: bool | None = Field(None, description="harmless: arguments are streamed as they are written")
    allowed_callers: list[Literal["direct"]] | None = Field(None, description="harmless: only the model calls")

    @model_validator(mode="before")
    @classmethod
    def _only_the_clients(cls, data: Any) -> Any:
        kind = data.get("type") if isinstance(data, dict) else None
        if isinstance(kind, str) and kind != "custom":
            values = {"kind": kind[:40]}
            raise PydanticCustomError("part", "the server has no tool '{kind}'; describe tools of your own", values)
        return data

    def to_chat(self) -> dict[str, Any]:
        """As a chat request has it."""
        function = {"name": self.name, "description": self.description, "parameters": self.input_schema}
        return {"type": "function", "function": {key: value for key, value in function.items() if value is not None}}


class Choice(Wire):
    """Which tool is called."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None

    @model_validator(mode="after")
    def _named(self) -> Self:
        if (self.type == "tool") != (self.name is not None):
            raise PydanticCustomError("tool_choice", "'tool_choice' has a 'name' for the type tool only")
        return self

    def to_chat(self) -> dict[str, Any]:
        """The fields of a chat request."""
        named = {"type": "function", "function": {"name": self.name}}
        choice: Any = {"auto": "auto", "any": "required", "none": "none"}.get(self.type, named)
        is_one = bool(self.disable_parallel_tool_use)
        return {"tool_choice": choice, **({"parallel_tool_calls": False} if is_one else {})}


class Thinking(Wire):
    """Whether the model thinks, and for how many tokens at most."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = Field(None, ge=1, le=INT64_MAX)
    display: str | None = Field(None, description="harmless: thoughts are always shown")


class OutputFormat(Wire):
    """JSON of a schema."""

    type: Literal["json_schema"]
    json_schema: dict[str, JsonValue] = Field(alias="schema")


class OutputConfig(Wire):
    """What the answer looks like, and how long the model may think."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class CountTokensRequest(Wire):
    """POST /v1/messages/count_tokens: what the prompt is made of."""

    refused: ClassVar[Mapping[str, str]] = {**Wire.refused, **_REFUSED}

    model: NonEmptyString
    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
    system: str | Annotated[list[TextBlock], Field(fail_fast=True)] | None = None
    tools: Annotated[list[CustomTool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_choice: Choice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = Field(None, description="older name of output_config.format")
    chat_template_kwargs: dict[str, JsonValue] | None = Field(None, description="vLLM's: for the chat template")
    cache_control: dict[str, JsonValue] | None = Field(None, description="harmless: every prefix is cached")

    @model_validator(mode="after")
    def _one_format(self) -> Self:
        given = self.output_config.format if self.output_config is not None else None
        if None not in (given, self.output_format) and given != self.output_format:
            message = "'output_format' is the older name of 'output_config.format', and they differ; give one of them"
            raise PydanticCustomError("output_format", message)
        return self

    def to_chat(self) -> dict[str, Any]:
        """The chat request that it is. An answer that the client has begun is continued."""
        system = self.system if isinstance(self.system, str) else _text_of(_said(self.system or ()))
        messages = [{"role": "system", "content": system}] if system else []
        for message in self.messages:
            messages += message.to_chat()
        last = messages[-1]
        is_begun = last["role"] == "assistant" and "tool_calls" not in last and bool(last["content"])
        begun = {"continue_final_message": True, "add_generation_prompt": False} if is_begun else {}
        shown = loaded_tools(self.tools or (), self.messages)
        tools = {"tools": [tool.to_chat() for tool in shown]} if shown else {}
        choice = self.tool_choice.to_chat() if self.tool_choice is not None else {}
        kwargs = {"chat_template_kwargs": self.chat_template_kwargs} if self.chat_template_kwargs else {}
        return {
            "model": self.model,
            "messages": messages,
            **begun,
            **tools,
            **choice,
            **kwargs,
            **self._thoughts(),
            **self._format(),
        }

    def _thoughts(self) -> dict[str, Any]:
        thinking, effort = self.thinking, self.output_config.effort if self.output_config is not None else None
        if thinking is not None and thinking.type == "disabled":
            return {"reasoning_effort": "none"}
        fields: dict[str, Any] = {"reasoning_effort": effort} if effort is not None else {}
        if thinking is not None and thinking.type == "enabled":
            fields.setdefault("reasoning_effort", "medium")
            if thinking.budget_tokens is not None:
                fields["thinking_token_budget"] = thinking.budget_tokens
        return fields

    def _format(self) -> dict[str, Any]:
        given = self.output_config.format if self.output_config is not None else None
        given = given or self.output_format
        if given is None:
            return {}
        return {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": given.json_schema}}}


@mixed_up_on("/v1/messages")
class MessagesRequest(CountTokensRequest):
    """POST /v1/messages."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, populate_by_name=True)

    max_tokens: int = Field(ge=1, le=INT64_MAX)
    stream: bool = False
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1, le=INT64_MAX)
    stop_sequences: Annotated[list[StopString], Field(max_length=16, fail_fast=True)] | None = None
    metadata: dict[str, JsonValue] | None = Field(None, description="harmless: taken and not used")
    service_tier: str | None = Field(None, description="harmless: there is one tier")
    cache_salt: CacheSalt | None = Field(None, description="vLLM's: cached prefixes are found with the same salt only")

    def to_chat(self) -> dict[str, Any]:
        """The chat request that it is."""
        sampling: dict[str, Any] = {"temperature": self.temperature, "top_p": self.top_p, "top_k": self.top_k}
        sampling |= {"stop": self.stop_sequences, "cache_salt": self.cache_salt}
        given = {name: value for name, value in sampling.items() if value is not None}
        return {**super().to_chat(), "max_tokens": self.max_tokens, "stream": self.stream, **given}

    def echo(self) -> dict[str, Any]:
        """What the answer says of the request."""
        return {"model": self.model}


def _said(blocks: Sequence[TextBlock]) -> list[TextBlock]:
    """Without the line by which Claude Code's requests are billed: it would part the cached prefixes of releases."""
    return [block for block in blocks if not block.text.startswith(BILLING)]


def _text_of(blocks: Sequence[TextBlock | ToolReference]) -> str:
    return "".join(block.text for block in blocks)


def _call(block: ToolUseBlock) -> dict[str, Any]:
    arguments = json.dumps(block.input, ensure_ascii=False)
    return {"id": block.id, "type": "function", "function": {"name": block.name, "arguments": arguments}}
