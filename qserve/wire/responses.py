"""What the routes answer, as schemas for /openapi.json. Only the document is built from them: answers are relayed as
bytes, and an engine may say more than stands here."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, JsonValue

from qserve.wire.tools import ToolCall

__all__ = ["LISTS", "OF_METHOD", "OF_ROUTE", "AnthropicErrorBody", "ErrorBody", "TeiErrorBody"]


class ErrorDetail(BaseModel):
    """`code` is for programs, `message` for people; `param` names the field that is wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """Every answer with a status from 400 on."""

    error: ErrorDetail


class AnthropicErrorDetail(BaseModel):
    type: str
    message: str


class AnthropicErrorBody(BaseModel):
    """The same on the routes of Anthropic's API."""

    type: Literal["error"]
    error: AnthropicErrorDetail


class TeiErrorBody(BaseModel):
    """The same on the route of text-embeddings-inference."""

    error: str
    error_type: str
    code: str


class Health(BaseModel):
    status: Literal["ok"]


class WorkerStatus(BaseModel):
    """A worker as the supervisor sees it; replicas of one role serve the same model."""

    name: str
    role: Literal["chat", "reward"]
    state: Literal["starting", "ready", "restarting", "draining", "idle", "failed"]
    detail: str
    models: list[str]


class Ready(BaseModel):
    status: Literal["ready"]
    workers: list[WorkerStatus]


class Restarting(BaseModel):
    """The workers that are restarted, in their order."""

    status: Literal["restarting"]
    workers: list[str]


class Version(BaseModel):
    version: str


class ModelCard(BaseModel):
    """`root` is the canonical name of the model that `id` names, `parent` the model under a LoRA adapter.

    `kind` tells a page for chats which models it may offer.
    """

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: str | None = None
    max_model_len: int
    kind: Literal["chat", "reward"]


class ModelList(BaseModel):
    object: Literal["list"]
    data: list[ModelCard]


class WorkerMemory(BaseModel):
    """`planned` is the plan's account, `memory` what was measured; `error` says why nothing was."""

    worker: str
    state: str
    planned: JsonValue = None
    memory: JsonValue = None
    error: str | None = None


class HostProcessMemory(BaseModel):
    """A process of the service that holds no model. `resident_bytes` is null of one that does not run now."""

    process: str
    planned_bytes: int
    low_bytes: int
    high_bytes: int
    planned_by: str
    resident_bytes: int | None
    difference: float | None
    source: str


class MemoryList(BaseModel):
    object: Literal["list"]
    data: list[WorkerMemory]
    host: list[HostProcessMemory]


class WorkerReport(WorkerMemory):
    """`work` is what a reward model's worker tells of its scoring: latency by length, rates, batch sizes, padding.

    `latency` holds of a chat model TTFT and TPOT as planned for the requests that came, beside what they took.
    """

    models: list[str]
    start_phases_s: dict[str, float]
    num_restarts: int
    work: JsonValue = None
    latency: JsonValue = None


class ReportList(BaseModel):
    object: Literal["list"]
    version: str
    run: str | None
    data: list[WorkerReport]
    host: list[HostProcessMemory]


class TokenizerFiles(BaseModel):
    """`files`: name to text, as they lie beside the weights."""

    model: str
    files: dict[str, str]


class TokenDetails(BaseModel):
    """`reasoning_tokens`: those of thoughts."""

    reasoning_tokens: int


class Usage(BaseModel):
    """Tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
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


class Tokenized(BaseModel):
    """`max_model_len`: prompt and answer together."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class Detokenized(BaseModel):
    prompt: str


class File(BaseModel):
    """`status` stands here for clients that read it; it is always `processed`."""

    id: str
    object: Literal["file"]
    bytes: int
    created_at: int
    expires_at: int
    filename: str
    purpose: Literal["batch", "batch_output"]
    status: Literal["processed"]
    status_details: str | None


class FileList(BaseModel):
    object: Literal["list"]
    data: list[File]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedFile(BaseModel):
    id: str
    object: Literal["file"]
    deleted: Literal[True]


class BatchError(BaseModel):
    """`line` counts from 1."""

    code: str
    line: int | None
    message: str
    param: str | None


class BatchErrors(BaseModel):
    object: Literal["list"]
    data: list[BatchError]


class BatchCounts(BaseModel):
    """Requests."""

    total: int
    completed: int
    failed: int


class Batch(BaseModel):
    """Times are Unix seconds; of `…_at` those stand that have come. Results are files once it has ended."""

    id: str
    object: Literal["batch"]
    endpoint: str
    model: str | None
    errors: BatchErrors | None
    input_file_id: str
    completion_window: str
    status: Literal[
        "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
    ]
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: BatchCounts
    metadata: dict[str, str] | None


class BatchList(BaseModel):
    object: Literal["list"]
    data: list[Batch]
    first_id: str | None
    last_id: str | None
    has_more: bool


OF_METHOD: dict[tuple[str, str], type[BaseModel]] = {
    ("POST", "/v1/files"): File,
    ("GET", "/v1/files"): FileList,
    ("GET", "/v1/files/{file_id}"): File,
    ("DELETE", "/v1/files/{file_id}"): DeletedFile,
    ("POST", "/v1/batches"): Batch,
    ("GET", "/v1/batches"): BatchList,
    ("GET", "/v1/batches/{batch_id}"): Batch,
    ("POST", "/v1/batches/{batch_id}/cancel"): Batch,
}
"""Of paths that several methods share."""

OF_ROUTE: dict[str, type[BaseModel]] = {
    "/health": Health,
    "/ready": Ready,
    "/version": Version,
    "/v1/qserve/restart": Restarting,
    "/v1/models": ModelList,
    "/v1/models/{model}": ModelCard,
    "/v1/qserve/memory": MemoryList,
    "/v1/qserve/report": ReportList,
    "/v1/qserve/tokenizer/{model}": TokenizerFiles,
    "/v1/chat/completions": ChatCompletion,
    "/v1/completions": Completion,
    "/tokenize": Tokenized,
    "/detokenize": Detokenized,
}

LISTS = frozenset({"/classify", "/", "/predict", "/rerank", "/v1/rerank", "/v2/rerank"})
"""Routes that answer a list to SGLang's and text-embeddings-inference's requests, an object to others."""
