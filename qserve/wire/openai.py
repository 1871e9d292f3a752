"""The OpenAI requests that qserve understands, as pydantic models.

Fields that OpenAI does not have (`top_k`, `min_p`, `repetition_penalty`, …) are spelled as vLLM spells them. The rules
that all schemas share are in `schema`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from operator import attrgetter
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import ConfigDict, Field, JsonValue, model_validator
from pydantic_core import PydanticCustomError

from qserve.wire.hints import mixed_up_on
from qserve.wire.messages import ConversationMessage
from qserve.wire.refused_fields import SERVED_BY_VLLM
from qserve.wire.sampling import Sampled
from qserve.wire.schema import (
    INT64_MAX,
    MAX_TOKEN_ID,
    NonEmptyString,
    OnlyFalse,
    OnlyOne,
    OnlyZero,
    PromptText,
    TokenId,
    TokenIds,
    Verbosity,
    Wire,
)
from qserve.wire.schema_rules import given, needs, one_of_these
from qserve.wire.structured import GUIDED, Choices, Pattern, ResponseFormat, StructuredOutputs, TextFormat, structure_of
from qserve.wire.tools import MAX_TOOLS, Tool, ToolChoice, check_choice, must_call, offered

__all__ = [
    "INT64_MAX",
    "MAX_PROMPTS",
    "MAX_TOKEN_ID",
    "ChatCompletionRequest",
    "CompletionRequest",
    "DetokenizeRequest",
    "NonEmptyString",
    "OnlyFalse",
    "OnlyOne",
    "OnlyZero",
    "PromptText",
    "SamplingFields",
    "StreamOptions",
    "TextFormat",
    "TokenId",
    "TokenIds",
    "TokenizeRequest",
    "Wire",
]

MAX_N = 128
# As OpenAI bounds the inputs of an embeddings request.
MAX_PROMPTS = 2048
# Each takes tokens of the template; no context is so long that more would fit.
MAX_MESSAGES = 8192
MAX_TOP_LOGPROBS = 20

# What our validators ask beyond names and types, where JSON Schema can tell it; docs/api.md has the rest.
_WHOLE_WITH_PROMPT_LOGPROBS = {
    "anyOf": [
        {"properties": {"prompt_logprobs": {"not": {"type": "integer", "minimum": 1}}}},
        {"properties": {"stream": {"not": {"const": True}}}},
    ]
}
_SAMPLING_RULES = (needs("stream_options", "object", "stream", True), _WHOLE_WITH_PROMPT_LOGPROBS)
_TOP_NEEDS_LOGPROBS = {
    "anyOf": [
        {"properties": {"top_logprobs": {"enum": [0, None]}}},
        {"required": ["logprobs"], "properties": {"logprobs": {"const": True}}},
    ]
}
_CHAT_SCHEMA: dict[str, Any] = {"allOf": [*_SAMPLING_RULES, _TOP_NEEDS_LOGPROBS]}
_ZERO_TOKENS_NEED_ECHO = {
    "anyOf": [
        {"properties": {"max_tokens": {"not": {"const": 0}}}},
        {"required": ["echo"], "properties": {"echo": {"const": True}}},
    ]
}
_COMPLETION_SCHEMA: dict[str, Any] = {"allOf": [*_SAMPLING_RULES, _ZERO_TOKENS_NEED_ECHO]}
_TOKENIZE_SCHEMA = {
    **one_of_these(prompt="string", messages="array"),
    "anyOf": [{"properties": {"tools": {"not": {"type": "array", "minItems": 1}}}}, given(messages="array")],
}


_STRUCTURE_FIELDS = attrgetter("response_format", "structured_outputs", *GUIDED)
_NO_STRUCTURE = (None,) * (2 + len(GUIDED))

Messages = Annotated[list[ConversationMessage], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]


class StreamOptions(Wire):
    """`include_usage`: one more event before [DONE] with the token counts; with `continuous_usage_stats` each event."""

    include_usage: bool = False
    continuous_usage_stats: bool = Field(False, description="vLLM's: only with include_usage")
    include_obfuscation: bool | None = Field(None, description="harmless: there is none")


class SamplingFields(Sampled):
    """What both completions endpoints share."""

    refused: ClassVar[Mapping[str, str]] = {**Wire.refused, **SERVED_BY_VLLM}

    model: NonEmptyString
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: int = Field(1, ge=1, le=MAX_N)
    min_tokens: int = Field(0, ge=0, le=INT64_MAX)
    return_token_ids: bool | None = Field(None, description="vLLM's: the ids of the prompt and of the answer")
    prompt_logprobs: int | None = Field(
        None, ge=0, le=MAX_TOP_LOGPROBS, description="vLLM's: of each token of the prompt, and of so many others there"
    )
    user: str | None = Field(None, description="harmless: taken and not used")
    safety_identifier: str | None = Field(None, description="harmless: taken and not used")
    prompt_cache_key: str | None = Field(None, description="harmless: taken and not used")
    prompt_cache_retention: str | None = Field(None, description="harmless: taken and not used")
    service_tier: str | None = Field(None, description="harmless: there is one tier")
    store: bool | None = Field(None, description="harmless: nothing is stored")
    metadata: dict[str, str] | None = Field(None, description="harmless: taken and not used")
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, JsonValue] | str | None = Field(None, description="older name: structured_outputs.json")
    guided_regex: Pattern | None = Field(None, description="older name: structured_outputs.regex")
    guided_choice: Choices | None = Field(None, description="older name: structured_outputs.choice")
    guided_grammar: Pattern | None = Field(None, description="older name: structured_outputs.grammar")

    @property
    def structure(self) -> StructuredOutputs | None:
        """What the answer must look like, whichever way it was said; None: anything."""
        return self._structures[0] if self._structures else None

    @property
    def structure_param(self) -> str:
        """The field that says it."""
        names = [name for name in ("structured_outputs", *GUIDED) if getattr(self, name) is not None]
        return names[0] if names else "response_format"

    @cached_property
    def _structures(self) -> list[StructuredOutputs]:
        guided = {kind: getattr(self, name) for name, kind in GUIDED.items()}
        ways = [
            structure_of(self.response_format),
            self.structured_outputs,
            *(StructuredOutputs.model_validate({name: value}) for name, value in guided.items() if value is not None),
        ]
        return [one for one in ways if one is not None]

    @model_validator(mode="after")
    def _check(self) -> Self:
        structures = [] if _STRUCTURE_FIELDS(self) == _NO_STRUCTURE else self._structures
        if len(structures) > 1:
            raise PydanticCustomError(
                "structured_outputs", "'response_format' and 'structured_outputs' both say what the answer is; give one"
            )
        if structures and self.ignore_eos:
            raise PydanticCustomError("ignore_eos", "'ignore_eos' does not go with an answer that has a structure")
        if self.stream_options is not None and not self.stream:
            raise PydanticCustomError("stream_options", "'stream_options' is only allowed with stream: true")
        if self.prompt_logprobs and self.stream:
            raise PydanticCustomError(
                "prompt_logprobs", "'prompt_logprobs' above 0 come with a whole answer; leave out stream: true"
            )
        for key in self.logit_bias or ():
            if not (key.isascii() and key.isdigit()):
                raise PydanticCustomError(
                    "logit_bias", "'logit_bias' maps token ids to biases; {key} is not a token id", {"key": repr(key)}
                )
        return self


@mixed_up_on("/v1/chat/completions")
class ChatCompletionRequest(SamplingFields):
    """POST /v1/chat/completions."""

    model_config = ConfigDict(json_schema_extra=_CHAT_SCHEMA)

    messages: Messages
    max_tokens: int | None = Field(None, ge=1, le=INT64_MAX)
    max_completion_tokens: int | None = Field(None, ge=1, le=INT64_MAX)
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_choice: ToolChoice | None = Field(None, description="auto where there are tools")
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = Field(
        None, description="none turns thinking off and all others on, where the chat template has the switch"
    )
    include_reasoning: bool = Field(True, description="vLLM's: false leaves thoughts out of the answer")
    chat_template_kwargs: dict[str, JsonValue] | None = None
    thinking_token_budget: int | None = Field(
        None, ge=0, le=INT64_MAX, description="vLLM's: tokens after which a thought is ended"
    )
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    echo: bool = Field(False, description="vLLM's: only false")
    split_special_tokens: bool = Field(
        True, description="special tokens in messages are text; false: they are control tokens, as the template's own"
    )
    parallel_tool_calls: bool | None = Field(None, description="false: one call at most; harmless without tools")
    modalities: list[Literal["text"]] | None = Field(None, description="harmless: answers are text")
    verbosity: Verbosity | None = None

    @model_validator(mode="after")
    def _check_chat(self) -> Self:
        if self.echo:
            raise PydanticCustomError(
                "echo",
                "'echo' is not supported here: the answer is the continuation alone. Leave it out, use 'echo' of "
                "/v1/completions, or use --engine vllm, which puts the assistant's last message in front",
            )
        if self.top_logprobs and not self.logprobs:
            raise PydanticCustomError("top_logprobs", "'top_logprobs' needs logprobs: true")
        if self.max_tokens is not None and self.max_completion_tokens not in (None, self.max_tokens):
            raise PydanticCustomError("max_tokens", "'max_tokens' and 'max_completion_tokens' differ; give one of them")
        check_choice(self.tools, self.tool_choice)
        if self.must_call and self.ignore_eos:
            raise PydanticCustomError("ignore_eos", "'ignore_eos' does not go with a tool that must be called")
        return self

    @property
    def must_call(self) -> bool:
        """Whether the answer is a call: then there is no text that a structure would bind."""
        return must_call(self.tool_choice)

    @property
    def offered_tools(self) -> tuple[Tool, ...]:
        """Tools that the model is shown."""
        return offered(self.tools, self.tool_choice)


@mixed_up_on("/v1/completions")
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
                "too_many_sequences",
                "'n' answers to each prompt are more than {most}; send several requests",
                {"most": MAX_PROMPTS},
            )
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
    messages: Messages | None = None
    add_special_tokens: bool = False
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    return_token_strs: bool = False
    split_special_tokens: bool = Field(True, description="of messages, as in /v1/chat/completions")
    chat_template_kwargs: dict[str, JsonValue] | None = None
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = Field(
        None, description="with messages: as in /v1/chat/completions"
    )

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise PydanticCustomError("prompt", "give 'prompt' or 'messages', one of the two")
        if self.tools and self.messages is None:
            raise PydanticCustomError("tools", "'tools' go with 'messages': a prompt has its own text")
        check_choice(self.tools, None)
        return self


class DetokenizeRequest(Wire):
    """POST /detokenize."""

    model: NonEmptyString | None = None
    tokens: Annotated[list[TokenId], Field(fail_fast=True)]
