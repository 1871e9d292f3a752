"""The service to chat with: at --url, else the newest one that runs on this machine, by the run store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qserve.cli.stores import existing_store
from qserve.errors import UsageError
from qserve.evaluation.server import NoServer, models_of
from qserve.hub.names import matching_ids, near_ids

__all__ = ["Partner", "find_partner", "running_urls"]

_DEFAULT_URL = "http://127.0.0.1:8000"
# Of the run store: a service that runs is among the newest.
_NEWEST = 50


@dataclass(frozen=True)
class Partner:
    """Whom to chat with: a model of a service, and the service's reward model if it has one."""

    url: str
    api_key: str
    model: str
    reward: str | None = None


def find_partner(url: str | None, api_key: str, model: str | None, state_dir: Path | None) -> Partner:
    """The partner at `url`, or in the newest service that has the model. Raises UsageError with what would work."""
    if url is not None:
        return _partner(url.rstrip("/").removesuffix("/v1"), api_key, model)
    urls = list(running_urls(state_dir)) or [_DEFAULT_URL]
    refusals = list[UsageError]()
    for one in urls:
        try:
            return _partner(one, api_key, model)
        except UsageError as error:
            refusals.append(error)
    if urls == [_DEFAULT_URL] and isinstance(refusals[0], NoServer):
        name = model or "demo"
        raise UsageError(
            f"no service runs here; `qserve run {name}` starts one for this chat, `qserve up {name}` one that keeps "
            "running"
        )
    raise UsageError("; ".join(map(str, refusals)))


def running_urls(state_dir: Path | None) -> Iterator[str]:
    """Addresses of services that run on this machine, the newest first; not those that a command started for itself."""
    from qserve.runs import StoreUnusable

    try:
        store = existing_store(state_dir)
        runs = store.runs(_NEWEST) if store else ()
    except StoreUnusable:
        return
    yield from (run.url for run in runs if run.url and run.state == "running" and not run.started_by)


def _partner(url: str, api_key: str, model: str | None) -> Partner:
    cards = models_of(url, api_key)
    chats = {name: card for name, card in cards.items() if card.get("kind", "chat") == "chat"}
    reward = next((name for name, card in cards.items() if card.get("kind") == "reward"), None)
    return Partner(url, api_key, _chosen(url, chats, model), reward)


def _chosen(url: str, cards: Mapping[str, Mapping[str, Any]], model: str | None) -> str:
    names = list(cards)
    if not names:
        raise UsageError(f"{url} serves no model to chat with")
    if model is None:
        return next((name for name, card in cards.items() if not card.get("parent")), names[0])
    found = [model] if model in names else list(matching_ids(model, names))
    if len(found) == 1:
        return found[0]
    near = near_ids(model, names, 1)
    hint = f"; did you mean {near[0]}?" if near else f"; `qserve run {model}` starts it"
    raise UsageError(f"{url} serves {', '.join(names)} and not {model}{hint}")
