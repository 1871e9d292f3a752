"""Every route of the gateway, in one table: what dispatches, what /openapi.json says, what docs/api.md is held to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from qserve.wire.openai import ChatCompletionRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest

__all__ = ["ROUTES", "RelayedRoute", "Route", "route_template"]


@dataclass(frozen=True)
class Route:
    """A route that the gateway answers itself."""

    method: str
    path: str
    summary: str

    @property
    def operation_id(self) -> str:
        """`chat_completions`, `model`, …: the path without versions and braces."""
        return "_".join(part.strip("{}") for part in self.path.removeprefix("/v1/").strip("/").split("/"))


@dataclass(frozen=True)
class RelayedRoute(Route):
    """A route whose body is checked against `request` and goes to a worker.

    `num_sequences` counts the places that a request takes there; None for work that never queues.
    """

    request: type[BaseModel]
    num_sequences: Callable[[Any], int] | None = None


def _chat_sequences(request: ChatCompletionRequest) -> int:
    return request.n


def _completion_sequences(request: CompletionRequest) -> int:
    """n per prompt; a list of integers is one prompt."""
    prompt = request.prompt
    num_prompts = len(prompt) if isinstance(prompt, list) and not isinstance(prompt[0], int) else 1
    return request.n * num_prompts


ROUTES: tuple[Route, ...] = (
    RelayedRoute(
        "POST", "/v1/chat/completions", "The next turn of a conversation.", ChatCompletionRequest, _chat_sequences
    ),
    RelayedRoute(
        "POST", "/v1/completions", "Text after a prompt, or the log-likelihood of it.", CompletionRequest,
        _completion_sequences,
    ),
    RelayedRoute("POST", "/tokenize", "Token ids of a prompt, or of messages through the template.", TokenizeRequest),
    RelayedRoute("POST", "/detokenize", "The text of token ids.", DetokenizeRequest),
    Route("GET", "/health", "The gateway's process is alive. The only route without a key."),
    Route("GET", "/ready", "Every worker takes requests; else 503 with the state of each."),
    Route("GET", "/version", "qserve's version."),
    Route("GET", "/metrics", "Prometheus: the gateway's metrics, then each worker's with a label `worker`."),
    Route("GET", "/openapi.json", "This document."),
    Route("GET", "/v1/models", "The models that are served."),
    Route("GET", "/v1/models/{model}", "One of them."),
    Route("GET", "/v1/qserve/memory", "What each worker holds in memory, per term, as it measured it."),
)  # fmt: skip

_FIXED = frozenset(route.path for route in ROUTES if "{" not in route.path)


def route_template(path: str) -> str:
    """The template that a request's path falls under; `unmatched` if there is none."""
    if path in _FIXED:
        return path
    return "/v1/models/{model}" if path.startswith("/v1/models/") else "unmatched"
