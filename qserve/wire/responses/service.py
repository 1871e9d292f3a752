"""How the service is, and which models it has."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

__all__ = [
    "AnthropicErrorBody",
    "ErrorBody",
    "Health",
    "ModelCard",
    "ModelList",
    "Ready",
    "Restarting",
    "TeiErrorBody",
    "Version",
]


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
