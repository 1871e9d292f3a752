"""How the service is, and which models it has."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

__all__ = ["Health", "ModelCard", "ModelList", "Ready", "Restarting", "Version"]


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
