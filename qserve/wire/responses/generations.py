"""What a model answers to a chat or a prompt, and to text or tokens."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, JsonValue

from qserve.wire.tools import ToolCall

__all__ = ["ChatCompletion", "Completion", "Detokenized", "InputTokens", "Tokenized", "TokenizerFiles"]


class TokenDetails(BaseModel):
    """`reasoning_tokens`: those of thoughts."""

    reasoning_tokens: int


class PromptTokenDetails(BaseModel):
    """Of the prompt, what was in the KV cache already."""

    cached_tokens: int


class Usage(BaseModel):
    """Tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokenDetails | None = None
    completion_tokens_details: TokenDetails | None = None


class AssistantMessage(BaseModel):
    """A thought has two names: DeepSeek's, which most clients read, and vLLM's."""

    role: Literal["assistant"]
    content: str | None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[ToolCall] | None = None


class ChatChoice(BaseModel):
    index: int
    message: AssistantMessage
    logprobs: JsonValue = None
    finish_reason: str | None


class ChatCompletion(BaseModel):
    """The answer that is not streamed."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage


class TextChoice(BaseModel):
    index: int
    text: str
    logprobs: JsonValue = None
    finish_reason: str | None


class Completion(BaseModel):
    """The answer that is not streamed."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[TextChoice]
    usage: Usage


class InputTokens(BaseModel):
    object: Literal["response.input_tokens"]
    input_tokens: int


class TokenizerFiles(BaseModel):
    """`files`: name to text, as they lie beside the weights."""

    model: str
    files: dict[str, str]


class Tokenized(BaseModel):
    """`max_model_len`: prompt and answer together."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class Detokenized(BaseModel):
    prompt: str
