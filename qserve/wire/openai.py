"""The OpenAI requests that qserve understands, as pydantic models.

The rule of the house: a field is used, is harmless, or is refused by name. `extra="forbid"` refuses the unknown ones;
fields of OpenAI's that we know and do not serve are refused with a sentence of their own in `_REFUSED`. Fields that
OpenAI does not have (`top_k`, `min_p`, `repetition_penalty`, …) are spelled as vLLM spells them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import PydanticCustomError, from_json, to_json

from qserve.wire.errors import from_validation
from qserve.wire.schema_rules import needs, one_of_these

__all__ = [
    "MAX_PROMPTS",
    "MAX_TOKEN_ID",
    "ChatCompletionRequest",
    "ChatMessage",
    "CompletionRequest",
    "DetokenizeRequest",
    "SamplingFields",
    "StreamOptions",
    "TextPart",
    "TokenizeRequest",
    "Wire",
]

MAX_N = 128
# As OpenAI bounds the inputs of an embeddings request.
MAX_PROMPTS = 2048
# Each takes tokens of the template; no context is so long that more would fit.
MAX_MESSAGES = 8192
MAX_STOP_STRINGS = 16
# Looked for after every token.
MAX_STOP_CHARS = 4096
MAX_STOP_TOKEN_IDS = 4096
MAX_TOP_LOGPROBS = 20
INT64_MAX = 2**63 - 1

_REFUSED = {
    "tools": "this engine does not parse tool calls",
    "tool_choice": "this engine does not parse tool calls",
    "parallel_tool_calls": "this engine does not parse tool calls",
    "functions": "deprecated by OpenAI, and this engine does not parse tool calls",
    "function_call": "deprecated by OpenAI, and this engine does not parse tool calls",
    "suffix": "Qwen chat models do not fill in the middle through this field",
    "modalities": "only text is served",
    "audio": "only text is served",
    "reasoning_effort": "use chat_template_kwargs, for example {\"enable_thinking\": false}",
    "service_tier": "there is one tier",
    "prediction": "predicted outputs are not served",
    "web_search_options": "there is no web search",
}  # fmt: skip


# What our validators ask beyond names and types, where JSON Schema can tell it; docs/api.md has the rest.
_SAMPLING_RULES = (needs("stream_options", "object", "stream", True),)
_CHAT_SCHEMA: dict[str, Any] = {"allOf": [*_SAMPLING_RULES, needs("top_logprobs", "integer", "logprobs", True)]}
_ZERO_TOKENS_NEED_ECHO = {
    "anyOf": [
        {"properties": {"max_tokens": {"not": {"const": 0}}}},
        {"required": ["echo"], "properties": {"echo": {"const": True}}},
    ]
}
_COMPLETION_SCHEMA: dict[str, Any] = {"allOf": [*_SAMPLING_RULES, _ZERO_TOKENS_NEED_ECHO]}
_MESSAGE_SCHEMA: dict[str, Any] = {
    "allOf": [{"required": ["role", "content"], "properties": {"content": {"type": ["string", "array"]}}}]
}
_TOKENIZE_SCHEMA = one_of_these(prompt="string", messages="array")
_TOKEN_IDS_AS_NAMES: dict[str, Any] = {"propertyNames": {"pattern": "^[0-9]+$"}}


def _check_bool(value: Any) -> Any:
    if not isinstance(value, bool):
        raise PydanticCustomError("bool_type", "Input should be a valid boolean")
    return value


# Lists stop at their first wrong item: an error for each of a million items took minutes and gigabytes.
# The engine says of an empty one that it has no tokens.
PromptText = Annotated[str, WithJsonSchema({"type": "string", "minLength": 1})]
NonEmptyString = Annotated[str, Field(min_length=1)]
StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS)]
# A Literal would take true for 1, and 0 for false.
OnlyOne = Annotated[int, Field(ge=1, le=1)]
OnlyZero = Annotated[int, Field(ge=0, le=0)]
OnlyFalse = Annotated[Literal[False], BeforeValidator(_check_bool)]
MAX_TOKEN_ID = 2**31 - 1
TokenId = Annotated[int, Field(ge=0, le=MAX_TOKEN_ID)]
TokenIds = Annotated[list[TokenId], Field(min_length=1, fail_fast=True)]
# More names than that in one object are no request; naming each as an error would take seconds.
_MAX_NAMES = 4096


def _with_whole_numbers(value: Any) -> Any:
    """Floats without a fraction as integers, wherever they stand."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_with_whole_numbers(one) for one in value]
    if isinstance(value, dict):
        return {name: _with_whole_numbers(one) for name, one in value.items()}
    return value


class Wire(BaseModel):
    """Strict about names and types: `"5"` is no integer, an unknown field is an error."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, populate_by_name=True)

    @model_validator(mode="before")
    @classmethod
    def _refuse_by_name(cls, data: Any) -> Any:
        if isinstance(data, dict):
            if max(len(one) for one in (data, *data.values()) if isinstance(one, dict)) > _MAX_NAMES:
                raise PydanticCustomError("too_many_names", f"an object holds more than {_MAX_NAMES} names")
            for name, value in data.items():
                why = _REFUSED.get(name)
                if why is not None and value is not None and name not in cls.model_fields:
                    raise PydanticCustomError(
                        "unsupported_field", "'{field}' is not supported: {why}", {"field": name, "why": why}
                    )
            # An explicit null means "not given": clients write out every field they know.
            return {key: value for key, value in data.items() if value is not None}
        return data

    @classmethod
    def parse(cls, body: bytes) -> Self:
        """The request that a body holds. Raises ApiError 400 that names the first wrong field.

        16.0 is a whole number, as JSON Schema has it and some languages write it: looked for where a reading failed,
        since it would cost every request of a million ids.
        """
        try:
            return cls.model_validate_json(body)
        except ValidationError as error:
            refused = error
        if any(item["type"] == "int_type" for item in refused.errors(include_url=False, include_input=False)):
            try:
                return cls.model_validate_json(to_json(_with_whole_numbers(from_json(body))))
            except ValidationError as error:
                refused = error
        raise from_validation(refused)

    @classmethod
    def known_names(cls) -> frozenset[str]:
        """Names that a body may have at its top, those included that are refused with a sentence of their own."""
        aliases = {field.alias for field in cls.model_fields.values() if field.alias is not None}
        return frozenset({*cls.model_fields, *aliases, *_REFUSED})


class StreamOptions(Wire):
    """`include_usage`: one more event before [DONE] with the token counts; with `continuous_usage_stats` each event."""

    include_usage: bool = False
    continuous_usage_stats: bool = Field(False, description="vLLM's: only with include_usage")


class SamplingFields(Wire):
    """What both completions endpoints share. Absent fields take the model's own generation defaults."""

    model: NonEmptyString
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: int = Field(1, ge=1, le=MAX_N)
    temperature: float | None = Field(None, ge=0, le=2, description="0 is greedy")
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1, le=INT64_MAX, description="-1 or 0 keeps all")
    min_p: float | None = Field(None, ge=0, le=1)
    seed: int | None = Field(None, ge=-(2**63), le=INT64_MAX)
    stop: StopString | Annotated[list[StopString], Field(max_length=MAX_STOP_STRINGS, fail_fast=True)] | None = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=MAX_STOP_TOKEN_IDS, fail_fast=True)] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    min_tokens: int = Field(0, ge=0, le=INT64_MAX)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    repetition_penalty: float | None = Field(None, gt=0, le=10)
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = Field(
        None, description="token id to bias", json_schema_extra=_TOKEN_IDS_AS_NAMES
    )
    skip_special_tokens: bool = True
    user: str | None = Field(None, description="harmless: taken and not used")
    metadata: dict[str, str] | None = Field(None, description="harmless: taken and not used")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise PydanticCustomError("stream_options", "'stream_options' is only allowed with stream: true")
        for key in self.logit_bias or ():
            if not (key.isascii() and key.isdigit()):
                raise PydanticCustomError(
                    "logit_bias", "'logit_bias' maps token ids to biases; {key} is no token id", {"key": repr(key)}
                )
        return self


class TextPart(Wire):
    """One part of a message's content. Images and audio are refused by their `type`."""

    type: Literal["text"]
    text: str


class ChatMessage(Wire):
    """One turn. Roles are those that Qwen's chat template knows."""

    model_config = ConfigDict(json_schema_extra=_MESSAGE_SCHEMA)

    role: Literal["system", "user", "assistant", "tool"]
    content: str | Annotated[list[TextPart], Field(fail_fast=True)] | None = None
    name: str | None = Field(None, description="harmless: the template has no place for it")

    @model_validator(mode="after")
    def _has_content(self) -> Self:
        if self.content is None:
            raise PydanticCustomError("content", "a message of role '{role}' needs 'content'", {"role": self.role})
        return self

    def text(self) -> str:
        """The content as one string."""
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""


class TextFormat(Wire):
    """`response_format`: only plain text here; structured output comes with vLLM."""

    type: Literal["text"]


class ChatCompletionRequest(SamplingFields):
    """POST /v1/chat/completions."""

    model_config = ConfigDict(json_schema_extra=_CHAT_SCHEMA)

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
    max_tokens: int | None = Field(None, ge=1, le=INT64_MAX)
    max_completion_tokens: int | None = Field(None, ge=1, le=INT64_MAX)
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    response_format: TextFormat | None = None
    chat_template_kwargs: dict[str, JsonValue] | None = None
    thinking_token_budget: int | None = Field(
        None, ge=0, le=INT64_MAX, description="vLLM's: tokens after which a thought is ended"
    )
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    split_special_tokens: bool = Field(
        True, description="special tokens in messages are text; false: they are control tokens, as the template's own"
    )
    store: SkipJsonSchema[OnlyFalse | None] = None

    @model_validator(mode="after")
    def _check_chat(self) -> Self:
        if self.top_logprobs is not None and not self.logprobs:
            raise PydanticCustomError("top_logprobs", "'top_logprobs' needs logprobs: true")
        if self.max_tokens is not None and self.max_completion_tokens not in (None, self.max_tokens):
            raise PydanticCustomError("max_tokens", "'max_tokens' and 'max_completion_tokens' differ; give one of them")
        return self


class CompletionRequest(SamplingFields):
    """POST /v1/completions. `echo` with `logprobs` is what lm-eval asks for log-likelihoods."""

    model_config = ConfigDict(json_schema_extra=_COMPLETION_SCHEMA)

    prompt: (
        PromptText
        | TokenIds
        | Annotated[list[PromptText], Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True)]
        | Annotated[list[TokenIds], Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True)]
    )
    max_tokens: int | None = Field(None, ge=0, le=INT64_MAX, description="16 where absent; 0 only with echo")
    echo: bool = False
    logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    best_of: OnlyOne | None = Field(None, description="only 1: ask for n and choose")

    @property
    def num_sequences(self) -> int:
        """`n` answers to each prompt."""
        num_prompts = len(self.prompt) if isinstance(self.prompt, list) and not isinstance(self.prompt[0], int) else 1
        return self.n * num_prompts

    @model_validator(mode="after")
    def _check_completion(self) -> Self:
        if self.num_sequences > MAX_PROMPTS:
            raise PydanticCustomError(
                "too_many_sequences", "'n' answers to each prompt are more than {most}; send several requests",
                {"most": MAX_PROMPTS},
            )  # fmt: skip
        if self.max_tokens == 0 and not self.echo:
            raise PydanticCustomError(
                "max_tokens", "'max_tokens': 0 generates nothing; it is only allowed with echo: true"
            )
        return self


class TokenizeRequest(Wire):
    """POST /tokenize: a prompt, or messages that go through the chat template."""

    model_config = ConfigDict(json_schema_extra=_TOKENIZE_SCHEMA)

    model: NonEmptyString | None = None
    prompt: str | None = None
    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)] | None = None
    add_special_tokens: bool = False
    add_generation_prompt: bool = True
    return_token_strs: bool = False
    split_special_tokens: bool = Field(True, description="of messages, as in /v1/chat/completions")
    chat_template_kwargs: dict[str, JsonValue] | None = None

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise PydanticCustomError("prompt", "give 'prompt' or 'messages', one of the two")
        return self


class DetokenizeRequest(Wire):
    """POST /detokenize."""

    model: NonEmptyString | None = None
    tokens: Annotated[list[TokenId], Field(fail_fast=True)]
