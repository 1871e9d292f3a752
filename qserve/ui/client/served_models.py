"""Models and features of the server, asked for when the pages are loaded and then every few seconds."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from qserve.ui.client.api import Api, ApiFailure

__all__ = ["ServedModels", "served_models"]


@dataclass(frozen=True)
class ServedModels:
    """What is behind the API.

    Attributes:
        chat: names of models that answer messages.
        reward: names of models that score answers.
        is_qserve: it has qserve's own routes: memory, report, readiness.
        waiting: of each worker that takes no requests yet its name, its state, and more about it, or "".
        lengths: `max_model_len` by model, where it is told.
        failure: why nothing could be asked; None where all is well.
    """

    chat: tuple[str, ...] = ()
    reward: tuple[str, ...] = ()
    is_qserve: bool = False
    waiting: tuple[tuple[str, str, str], ...] = ()
    lengths: tuple[tuple[str, int], ...] = ()
    failure: ApiFailure | None = None

    @property
    def is_ready(self) -> bool:
        """Everything answers."""
        return self.failure is None and not self.waiting

    @property
    def problem(self) -> str:
        """The failure's sentence; "" where all is well."""
        return str(self.failure) if self.failure else ""


async def served_models(api: Api) -> ServedModels:
    """Ask for models and roles. Never raises: what went wrong is `failure`."""
    models, ready = await asyncio.gather(_models(api), _ready(api))
    if isinstance(models, ApiFailure):
        return ServedModels(is_qserve=ready is not None, failure=models)
    names = tuple(model["id"] for model in models)
    lengths = tuple((one["id"], one["max_model_len"]) for one in models if one.get("max_model_len"))
    if ready is None:
        return ServedModels(chat=names, lengths=lengths)
    is_ready = ready.get("status") == "ready"  # also with models that are loaded when they are asked for
    roles = {name: worker.get("role", worker["name"]) for worker in ready["workers"] for name in worker["models"]}
    return ServedModels(
        chat=tuple(name for name in names if roles.get(name, "chat") not in ("reward", "embed")),
        reward=tuple(name for name in names if roles.get(name) == "reward"),
        is_qserve=True,
        waiting=() if is_ready else tuple(_waiting(one) for one in ready["workers"] if one["state"] != "ready"),
        lengths=lengths,
    )


async def _models(api: Api) -> list[dict[str, Any]] | ApiFailure:
    try:
        document = await api.get("/v1/models")
    except ApiFailure as failure:
        return failure
    return [one for one in document.get("data", []) if isinstance(one, dict) and one.get("id")]


async def _ready(api: Api) -> dict[str, Any] | None:
    """qserve's /ready; None where there is none, since other servers have none or another one."""
    try:
        document = await api.get_any_status("/ready")
    except ApiFailure:
        return None
    return document if isinstance(document, dict) and isinstance(document.get("workers"), list) else None


def _waiting(worker: dict[str, Any]) -> tuple[str, str, str]:
    return ", ".join(worker["models"]) or worker["name"], worker["state"], worker.get("detail") or ""
