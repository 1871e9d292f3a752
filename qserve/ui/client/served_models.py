"""Models and features of the server, requested each time a page opens."""

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
        waiting: a sentence for each worker that does not take requests yet.
        lengths: `max_model_len` by model, where it is told.
        problem: why nothing could be asked; "" where all is well.
    """

    chat: tuple[str, ...] = ()
    reward: tuple[str, ...] = ()
    is_qserve: bool = False
    waiting: tuple[str, ...] = ()
    lengths: tuple[tuple[str, int], ...] = ()
    problem: str = ""


async def served_models(api: Api) -> ServedModels:
    """Ask for models and roles. Never raises: what went wrong is `problem`."""
    models, ready = await asyncio.gather(_models(api), _ready(api))
    if isinstance(models, ApiFailure):
        return ServedModels(is_qserve=ready is not None, problem=str(models))
    names = tuple(model["id"] for model in models)
    lengths = tuple((one["id"], one["max_model_len"]) for one in models if one.get("max_model_len"))
    if ready is None:
        return ServedModels(chat=names, lengths=lengths)
    roles = {name: worker.get("role", worker["name"]) for worker in ready["workers"] for name in worker["models"]}
    return ServedModels(
        chat=tuple(name for name in names if roles.get(name, "chat") != "reward"),
        reward=tuple(name for name in names if roles.get(name) == "reward"),
        is_qserve=True,
        waiting=tuple(_waiting(worker) for worker in ready["workers"] if worker["state"] != "ready"),
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


def _waiting(worker: dict[str, Any]) -> str:
    return f"{', '.join(worker['models']) or worker['name']}: {worker.get('detail') or worker['state']}"
