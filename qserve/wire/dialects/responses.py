"""OpenAI's Responses API: what its clients send, and the chat request that it is. Nothing is stored meanwhile."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import ConfigDict, Field, JsonValue, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from qserve.wire.dialects.responses_input import InputItem, messages_of
from qserve.wire.dialects.responses_tools import (
    AllowedTools,
    Choice,
    NamedTool,
    ResponsesTool,
    ServerTool,
    chosen_name,
    offered,
    server_tool_alone,
)
from qserve.wire.hints import mixed_up_on
from qserve.wire.openai import MAX_MESSAGES, MAX_TOP_LOGPROBS
from qserve.wire.sampling import SAMPLED, Sampled
from qserve.wire.schema import INT64_MAX, NonEmptyString, OnlyFalse, Verbosity, Wire, type_of
from qserve.wire.structured import StructuredOutputs
from qserve.wire.tools import MAX_TOOLS

__all__ = ["InputTokensRequest", "ResponsesRequest"]

_STATELESS = "nothing is stored between requests; send the items of the conversation as 'input'"
_REFUSED = {
    "previous_response_id": _STATELESS,
    "conversation": _STATELESS,
    "prompt": "no prompts are stored; send their text",
    "context_management": "send only the items that the model should read",
    "moderation": "nothing is moderated here",
    "personality": "these models have no preset styles; describe one in 'instructions'",
}


class PlainText(Wire):
    """`text.format`: any text."""

    type: Literal["text"]


class JsonObject(Wire):
    """`text.format`: any JSON object."""

    type: Literal["json_object"]


class JsonSchema(Wire):
    """`text.format`: JSON of a schema."""

    type: Literal["json_schema"]
    name: str
    json_schema: dict[str, JsonValue] = Field(alias="schema")
    description: str | None = None
    strict: bool | None = Field(None, description="harmless: answers always follow the schema")


class TextConfig(Wire):
    """What the text of the answer looks like."""

    format: Annotated[PlainText | JsonObject | JsonSchema, Field(discriminator="type")] | None = None
    verbosity: Verbosity | None = None

    def to_chat(self) -> dict[str, Any]:
        """The fields of a chat request."""
        if not isinstance(self.format, JsonSchema):
            return {} if self.format is None else {"response_format": {"type": self.format.type}}
        schema = {"name": self.format.name, "schema": self.format.json_schema}
        return {"response_format": {"type": "json_schema", "json_schema": schema}}


class Reasoning(Wire):
    """How long the model may think."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Literal["auto"] | None = Field(None, description="only auto: thoughts are shown as they are")


class StreamOptions(Wire):
    """`include_obfuscation`: harmless, there is none."""

    include_obfuscation: bool | None = None


@mixed_up_on("/v1/responses")
class ResponsesRequest(Sampled):
    """POST /v1/responses."""

    refused: ClassVar[Mapping[str, str]] = {**Wire.refused, **_REFUSED}

    model: NonEmptyString
    input: str | Annotated[list[InputItem], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
    instructions: str | None = None
    max_output_tokens: int | None = Field(None, ge=1, le=INT64_MAX)
    max_tool_calls: int | None = Field(None, description="harmless: the server calls no tools itself")
    stream: bool = False
    stream_options: StreamOptions | None = None
    top_logprobs: int | None = Field(
        None, ge=0, le=MAX_TOP_LOGPROBS, description="of each token, where 'include' asks for log-probabilities"
    )
    chat_template_kwargs: dict[str, JsonValue] | None = Field(None, description="vLLM's: for the chat template")
    tools: Annotated[list[ResponsesTool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_choice: Choice | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    reasoning: Reasoning | None = None
    truncation: Literal["auto", "disabled"] | None = Field(
        None, description="harmless: nothing is left out, and what is too long is refused"
    )
    # Where it is true, the gateway keeps the response and asks the worker without this field.
    background: Annotated[OnlyFalse, WithJsonSchema({"type": "boolean"})] | None = Field(
        None, description="true: the response is computed without the client, and kept"
    )
    client_metadata: dict[str, JsonValue] | None = Field(None, description="harmless: an agent's own bookkeeping")
    include: list[Literal["reasoning.encrypted_content", "message.output_text.logprobs"]] | None = Field(
        None, description="log-probabilities of the text; reasoning.encrypted_content is harmless: none is encrypted"
    )
    store: bool | None = Field(None, description="harmless: what is not in the background is not stored")
    user: str | None = Field(None, description="harmless: taken and not used")
    metadata: dict[str, str] | None = Field(None, description="comes back")
    safety_identifier: str | None = Field(None, description="harmless: taken and not used")
    prompt_cache_key: str | None = Field(None, description="harmless: taken and not used")
    prompt_cache_retention: str | None = Field(None, description="harmless: taken and not used")
    service_tier: str | None = Field(None, description="harmless: there is one tier")
    structured_outputs: StructuredOutputs | None = Field(None, description="vLLM's: in place of 'text.format'")
    include_reasoning: bool = Field(True, description="vLLM's: false leaves thoughts out of the answer")

    @model_validator(mode="after")
    def _has_tools_of_the_client(self) -> Self:
        if (kind := server_tool_alone([type_of(tool) for tool in self.tools or ()])) is not None:
            message = "the server has no tool of type '{kind}'; it is left out only where the client runs other tools"
            raise PydanticCustomError("part", message, {"kind": kind})
        return self

    @property
    def larks(self) -> dict[str, str]:
        """The grammars of custom tools, by their names to the model."""
        return {one.flat: lark for one in offered(self.tools or ()) if (lark := one.lark) is not None}

    def to_chat(self) -> dict[str, Any]:
        """The chat request that it is."""
        instructions = [{"role": "system", "content": self.instructions}] if self.instructions else []
        same = {*SAMPLED, "chat_template_kwargs", "include_reasoning", "structured_outputs"}
        fields: dict[str, Any] = {
            **self.model_dump(include=same, exclude_unset=True, by_alias=True),
            "max_tokens": self.max_output_tokens,
            "reasoning_effort": self.reasoning.effort if self.reasoning is not None else None,
        }
        if "message.output_text.logprobs" in (self.include or ()):
            fields |= {"logprobs": True, "top_logprobs": self.top_logprobs}
        if self.tools:
            fields["tools"] = [tool.to_chat() for tool in offered(self.tools)]
            fields["parallel_tool_calls"] = self.parallel_tool_calls
        choice: Any = self.tool_choice
        if isinstance(choice, NamedTool):
            choice = self._called(choice)
        elif isinstance(choice, AllowedTools):
            allowed = {"mode": choice.mode, "tools": [self._called(tool) for tool in choice.tools]}
            choice = {"type": choice.type, "allowed_tools": allowed}
        fields["tool_choice"] = choice
        fields |= self.text.to_chat() if self.text is not None else {}
        given = {name: value for name, value in fields.items() if value is not None}
        return {
            "model": self.model,
            "messages": [*instructions, *messages_of(self.input)],
            "stream": self.stream,
            **given,
        }

    def _called(self, choice: NamedTool) -> dict[str, Any]:
        own_names = {tool.flat: tool.name for tool in offered(self.tools or ())}
        return {"type": "function", "function": {"name": chosen_name(choice.namespace, choice.name, own_names)}}

    def echo(self) -> dict[str, Any]:
        """What the answer says of the request."""
        names = {
            "model",
            "instructions",
            "max_output_tokens",
            "max_tool_calls",
            "temperature",
            "top_p",
            "tools",
            "tool_choice",
            "parallel_tool_calls",
            "text",
            "reasoning",
            "truncation",
            "metadata",
            "user",
            "top_logprobs",
        }
        told = self.model_dump(mode="json", include=names, by_alias=True)
        if self.tools:
            told["tools"] = [tool.model_dump(mode="json") for tool in self.tools if not isinstance(tool, ServerTool)]
        return told


class InputTokensRequest(ResponsesRequest):
    """POST /v1/responses/input_tokens: such a request, or the part of it that the prompt is made of."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        populate_by_name=True,
        json_schema_extra={
            "anyOf": [
                {
                    "properties": {"input": {"anyOf": [{"type": "string"}, {"type": "array", "minItems": 1}]}},
                    "required": ["input"],
                },
                {"properties": {"instructions": {"type": "string", "minLength": 1}}, "required": ["instructions"]},
            ]
        },
    )

    model: NonEmptyString | None = None  # type: ignore[assignment]
    background: OnlyFalse | None = None
    input: str | Annotated[list[InputItem], Field(max_length=MAX_MESSAGES, fail_fast=True)] = Field(default=[])

    @model_validator(mode="after")
    def _not_empty(self) -> Self:
        if self.input == [] and not self.instructions:
            raise PydanticCustomError("nothing", "'input' is missing; give it, or 'instructions': there is no prompt")
        return self

    def to_chat(self) -> dict[str, Any]:
        """The chat request whose prompt is counted; no model answers it, so that any name will do."""
        return {**super().to_chat(), "model": self.model or "any"}
