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
    """A worker as the supervisor sees it; replicas of one group serve the same model."""

    name: str
    role: Literal["chat", "reward", "embed"]
    state: Literal["starting", "ready", "restarting", "draining", "unloading", "idle", "failed"]
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
    kind: Literal["chat", "reward", "embed"]
    state: str
    planned_bytes: int | None


class ModelList(BaseModel):
    object: Literal["list"]
    data: list[ModelCard]


class ResidentModel(BaseModel):
    """A model and whether it is in memory.

    Of one that is always there `is_pinned` is true, and what is told of turns is missing. `idle_s`, `waiting_s` and
    `load_s` are null where there is nothing to tell.
    """

    name: str
    models: list[str]
    role: Literal["chat", "reward"]
    engine: str
    state: Literal["starting", "ready", "restarting", "draining", "unloading", "idle", "failed"]
    detail: str
    is_pinned: bool
    num_requests: int
    ttl_s: float | None = None
    priority: float | None = None
    planned_bytes: int | None = None
    idle_s: float | None = None
    waiting_s: float | None = None
    load_s: float | None = None
    num_loads: int | None = None
    served_s: float | None = None


class Room(BaseModel):
    """`is_granted`: the models that had to leave have left. `lease_s`: it is to be renewed before."""

    room: str
    is_granted: bool
    lease_s: float


class ResidentModels(BaseModel):
    """All models of the service."""

    object: Literal["list"]
    data: list[ResidentModel]


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
