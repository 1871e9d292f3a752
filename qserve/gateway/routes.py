"""The table of all routes: used by the dispatcher, /openapi.json, and the test of docs/api.md.

To add a route that chat models answer: one `RelayedRoute` here, and its reader in the wire format of each engine that
serves it (`qserve.worker.wire`); those of reward models are made of the rows of `wire/reward/table.py`. Of a path that
several kinds share (`/v1/embeddings` of vLLM, an embedding and a reward model), the kind that serves the request's
model reads the body, and a model whose worker lacks the route gets a 400 that names what has it. Put the route into
docs/api.md; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from qserve.gateway.unserved import why_not_served
from qserve.wire.engine_fields import EngineFields
from qserve.wire.errors import Dialect
from qserve.wire.reward.fields import num_slots
from qserve.wire.reward.table import BY_PATH, OF_VECTORS, RewardProtocol
from qserve.worker.wire import WireRoute
from qserve.worker.wires import BySchema, all_wires, wire_named

__all__ = [
    "ADAPTER_ROUTES",
    "BATCH_ROUTES",
    "PAGE",
    "RESPONSE_ROUTES",
    "ROUTES",
    "RelayedRoute",
    "Route",
    "ServingWorker",
    "dialect_of",
    "route_template",
]

MESSAGES = "/v1/messages"
PAGE = "/"
"""Where browsers find the web UI, and clients of text-embeddings-inference post to; there is nothing else to get."""


@dataclass(frozen=True)
class Route:
    """A route that the gateway answers itself."""

    method: str
    path: str
    summary: str

    @property
    def operation_id(self) -> str:
        """`chat_completions`, `model`, …: the path without versions and braces."""
        return "_".join(part.strip("{}") for part in self.path.removeprefix("/v1/").strip("/").split("/")) or "root"


@dataclass(frozen=True)
class RelayedRoute(Route):
    """A route that goes to a worker: a chat worker whose wire format has it (`EngineWire.routes`), a reward or an
    embedding model.

    Attributes:
        dialect: whose shape its errors have.
        streams: whether the answer can be a stream of events.
        names_model: whether `model` in the body names a served model; some clients always send a constant.
        reward: how reward models read it, on any engine; None: they don't serve it.
        embed: the same of embedding models.
    """

    dialect: Dialect = Dialect.OPENAI
    streams: bool = False
    names_model: bool = True
    reward: WireRoute | None = None
    embed: WireRoute | None = None

    def offered(self, worker: ServingWorker) -> WireRoute | None:
        """What the worker's kind has for this route; None: nothing of the kind serves it."""
        if worker.role == "reward":
            return self.reward
        if worker.role == "embed":
            return self.embed
        return wire_named(worker.wire).routes.get((self.method, self.path))

    def served(self, worker: ServingWorker) -> WireRoute | None:
        """As `offered`; None also where the running worker reports that it lacks the route."""
        offered = self.offered(worker)
        if offered is None or worker.request_fields is None:
            return offered
        return offered if (offered.path or self.path, self.method) in worker.request_fields.routes else None

    def offers(self) -> Iterator[WireRoute]:
        """What each kind of worker has for it."""
        yield from (one for wire in all_wires() if (one := wire.routes.get((self.method, self.path))) is not None)
        yield from (one for one in (self.reward, self.embed) if one is not None)

    def kinds(self) -> Iterator[str]:
        """Which workers serve it, in words."""
        for wire in all_wires():
            if (self.method, self.path) in wire.routes:
                yield f"chat models on {wire.title}"
        if self.reward is not None:
            yield "reward models on any engine"
        if self.embed is not None:
            yield "embedding models (--embed)"


class ServingWorker(Protocol):
    """What decides on the routes of a worker: see `WorkerFacts`."""

    @property
    def role(self) -> str: ...
    @property
    def wire(self) -> str: ...
    @property
    def request_fields(self) -> EngineFields | None: ...


def _reward(protocol: RewardProtocol) -> WireRoute:
    """A reward model schedules its requests itself, and so does an embedding model."""
    return WireRoute(BySchema(protocol.request, lambda request: num_slots(request.num_texts())))


def _embed(path: str) -> WireRoute | None:
    return _reward(OF_VECTORS[path]) if path in OF_VECTORS else None


_GENERATION = (
    RelayedRoute("POST", "/v1/chat/completions", "The next turn of a conversation.", streams=True),
    RelayedRoute("POST", "/v1/completions", "Text after a prompt, or the log-likelihood of it.", streams=True),
    RelayedRoute("POST", "/v1/chat/completions/batch", "Several conversations in one request."),
    RelayedRoute("POST", "/v1/responses", "OpenAI's Responses API.", Dialect.RESPONSES, streams=True),
    RelayedRoute("POST", "/v1/responses/input_tokens", "The prompt tokens of such a request.", Dialect.RESPONSES),
    RelayedRoute("POST", "/v1/messages", "Anthropic's Messages API.", Dialect.ANTHROPIC, streams=True),
    RelayedRoute("POST", "/v1/messages/count_tokens", "The prompt tokens of such a request.", Dialect.ANTHROPIC),
    RelayedRoute("POST", "/inference/v1/generate", "Token ids to token ids.", streams=True),
)

_SMALLER = (
    RelayedRoute("POST", "/v1/embeddings", "Vectors of texts."),
    RelayedRoute("POST", "/generative_scoring", "Probabilities of chosen tokens after texts."),
    RelayedRoute("POST", "/v1/systemone", "Decisions from a fixed set of labels."),
    RelayedRoute("POST", "/tokenize", "Token ids of a prompt, or of messages through the template."),
    RelayedRoute("POST", "/detokenize", "The text of token ids."),
    RelayedRoute("POST", "/v1/chat/completions/render", "The prompt that a chat request becomes."),
    RelayedRoute("POST", "/v1/completions/render", "The same of a completions request."),
    RelayedRoute("POST", "/v1/responses/render", "The same of a responses request."),
    RelayedRoute("POST", "/v1/messages/render", "The same of a messages request.", Dialect.ANTHROPIC),
)


def _with_rewards(routes: tuple[RelayedRoute, ...]) -> Iterator[RelayedRoute]:
    """`routes` of chat models, those with a reward protocol at their path served by reward models too; then the others
    of these protocols.
    """
    for route in routes:
        if route.path in BY_PATH:
            protocol = BY_PATH[route.path]
            summary = f"{route.summary.rstrip('.')}; from a reward model, {protocol.paths[route.path]}"
            route = replace(route, summary=summary, reward=_reward(protocol), embed=_embed(route.path))
        yield route
    shared = {route.path for route in routes}
    for path, one in BY_PATH.items():
        if path not in shared:
            yield RelayedRoute(
                "POST", path, one.paths[path], one.dialect, names_model=one.names_model, reward=_reward(one)
            )


_OWN = (
    Route("GET", "/health", "The gateway's process is alive. The only route without a key."),
    Route("GET", "/ready", "Every worker takes requests; else 503 with the state of each."),
    Route("GET", "/version", "qserve's version."),
    Route("GET", "/metrics", "Prometheus: the gateway's metrics, then each worker's with a label `worker`."),
    Route("GET", "/openapi.json", "This document."),
    Route("GET", "/v1/models", "The models that are served."),
    Route("GET", "/v1/models/{model}", "One of them."),
    Route("GET", "/v1/qserve/memory", "Memory of each worker, per term, planned and measured."),
    Route("GET", "/v1/qserve/report", "The same with each worker's start and restarts, and the work of reward models."),
    Route("GET", "/v1/qserve/usage", "What keys with names have used today, and have left; ?format=csv for a table."),
    Route("GET", "/v1/qserve/models", "Each model: whether it is in memory, what it takes there, who waits for it."),
    Route("POST", "/v1/qserve/models/{model}/load", "Loads a model; the answer does not wait for it."),
    Route("POST", "/v1/qserve/models/{model}/unload", "Lets its requests finish, and frees its memory."),
    Route("POST", "/v1/qserve/models/{model}/pin", "Keeps it in memory from now on, whoever asks for another."),
    Route("POST", "/v1/qserve/models/{model}/unpin", "It may leave for others again."),
    Route("POST", "/v1/qserve/room", "Models that take turns leave room for something else, as long as it is renewed."),
    Route("DELETE", "/v1/qserve/room/{room}", "Gives the room back to the models."),
    Route("POST", "/v1/qserve/restart", "Restarts the workers one after the other, each when its requests are over."),
    Route("GET", "/v1/qserve/runs", "The runs of this machine's store, newest first."),
    Route("GET", "/v1/qserve/runs/{run}", "One of them: plan, start, memory over time, events, requests, results."),
    Route("GET", "/v1/qserve/trainings", "The training runs of the store with their states, newest first."),
    Route("GET", "/report", "This run's report as a page: planned against measured, latency, results, faults."),
    Route("GET", "/report/{run}", "The report of another run of this machine's store."),
    Route("GET", "/v1/qserve/tokenizer/{model}", "The files of a model's tokenizer, for clients that count tokens."),
)

BATCH_ROUTES = (
    Route("POST", "/v1/files", "Uploads a file of requests, as multipart/form-data."),
    Route("GET", "/v1/files", "The files of this key, the newest first."),
    Route("GET", "/v1/files/{file_id}", "One of them."),
    Route("DELETE", "/v1/files/{file_id}", "Deletes one."),
    Route("GET", "/v1/files/{file_id}/content", "Its bytes."),
    Route("POST", "/v1/batches", "Answers the requests of a file in the background."),
    Route("GET", "/v1/batches", "The batches of this key, the newest first."),
    Route("GET", "/v1/batches/{batch_id}", "One of them: its state, its counts, the files of its results."),
    Route("POST", "/v1/batches/{batch_id}/cancel", "Cancels one; answers that are complete are kept."),
)
"""OpenAI's files and batches, which `gateway/batches/` answers."""

RESPONSE_ROUTES = (
    Route("GET", "/v1/responses/{response_id}", "A background response as it stands, or its events."),
    Route("DELETE", "/v1/responses/{response_id}", "Forgets one; it is ended first."),
    Route("POST", "/v1/responses/{response_id}/cancel", "Ends one that runs."),
)
"""Responses that are computed in the background, which `gateway/background/` answers."""

ADAPTER_ROUTES = (
    Route("GET", "/v1/qserve/adapters", "The LoRA adapters that were loaded at run time, and the room for more."),
    Route("POST", "/v1/qserve/adapters", "Loads a LoRA adapter: its name is a model from then on."),
    Route("DELETE", "/v1/qserve/adapters/{adapter}", "Unloads one."),
)
"""LoRA adapters at run time, which `gateway/adapters/` answers."""

ROUTES: tuple[Route, ...] = (
    *_with_rewards((*_GENERATION, *_SMALLER)),
    *BATCH_ROUTES,
    *RESPONSE_ROUTES,
    *_OWN,
    *ADAPTER_ROUTES,
)

_OF_MODELS = ("{model}", "{adapter}")
_FIXED = frozenset(route.path for route in ROUTES if "{" not in route.path)
# (prefix, suffix, template); the longest suffix first.
_TEMPLATES = sorted(
    {
        (path[: path.index("{")], path[path.index("}") + 1 :], path)
        for path in (route.path for route in ROUTES)
        if "{" in path
    },
    key=lambda one: -len(one[1]),
)

_DIALECTS = {route.path: route.dialect for route in ROUTES if isinstance(route, RelayedRoute)}


def dialect_of(template: str, method: str = "POST", path: str = "") -> Dialect:
    """The error format of a route. For unknown ones `path` tells: Anthropic's below /v1/messages, else OpenAI's."""
    if template == PAGE and method != "POST":
        return Dialect.OPENAI
    if path.startswith(MESSAGES) and (path == MESSAGES or path[len(MESSAGES)] == "/"):
        return Dialect.ANTHROPIC
    return _DIALECTS.get(template, Dialect.OPENAI)


def route_template(path: str) -> str:
    """The template that matches a request's path; `unmatched` if there is none.

    The value of `{model}` and `{adapter}` may hold slashes, as names of models do; any other is one name. No template
    matches a path that means something else in OpenAI's or Anthropic's API (`NOT_SERVED`).
    """
    if path in _FIXED:
        return path
    if why_not_served(path) is not None:
        return "unmatched"
    for begin, end, template in _TEMPLATES:
        value = path[len(begin) : len(path) - len(end)]
        if path == begin + value + end and value and (template.endswith(_OF_MODELS) or "/" not in value):
            return template
    return "unmatched"
