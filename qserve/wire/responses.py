"""What the routes answer, as schemas for /openapi.json. Only the document is built from them: answers are relayed as
bytes, and an engine may say more than stands here."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, JsonValue

__all__ = ["OF_ROUTE", "ErrorBody"]


class ErrorDetail(BaseModel):
    """`code` is for programs, `message` for people; `param` names the field that is wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """Every answer with a status from 400 on."""

    error: ErrorDetail


class Health(BaseModel):
    status: Literal["ok"]


class WorkerStatus(BaseModel):
    """A worker as the supervisor sees it."""

    name: str
    state: Literal["starting", "ready", "restarting", "draining", "failed"]
    detail: str
    models: list[str]


class Ready(BaseModel):
    status: Literal["ready"]
    workers: list[WorkerStatus]


class Version(BaseModel):
    version: str


class ModelCard(BaseModel):
    """`root` is the canonical name of the model that `id` names."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    max_model_len: int


class ModelList(BaseModel):
    object: Literal["list"]
    data: list[ModelCard]


class WorkerMemory(BaseModel):
    """`memory` is the worker's own account; `error` says why there is none."""

    worker: str
    state: str
    memory: JsonValue = None
    error: str | None = None


class MemoryList(BaseModel):
    object: Literal["list"]
    data: list[WorkerMemory]


class Usage(BaseModel):
    """Tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class AssistantMessage(BaseModel):
    role: Literal["assistant"]
    content: str | None


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


class Tokenized(BaseModel):
    """`max_model_len`: prompt and answer together."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class Detokenized(BaseModel):
    prompt: str


OF_ROUTE: dict[str, type[BaseModel]] = {
    "/health": Health,
    "/ready": Ready,
    "/version": Version,
    "/v1/models": ModelList,
    "/v1/models/{model}": ModelCard,
    "/v1/qserve/memory": MemoryList,
    "/v1/chat/completions": ChatCompletion,
    "/v1/completions": Completion,
    "/tokenize": Tokenized,
    "/detokenize": Detokenized,
}
