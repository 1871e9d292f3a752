"""The table of all routes: used by the dispatcher, /openapi.json, and the test of docs/api.md.

To add a route that chat models answer: one `RelayedRoute` with a `Service` for each kind of worker that serves it;
those of reward models are made of the rows of `wire/reward/table.py`. A path that several kinds share (`/v1/embeddings`
of vLLM and of a reward model) is one route with several services; the one that fits the request's model reads the body,
and a model whose worker fits none gets a 400 that names what does. Put the route into docs/api.md; a test compares the
two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from qserve.engines.vllm.wire import requests
from qserve.gateway.apis.input_tokens import RESPONSES, CountsByAnswering, counted
from qserve.gateway.apis.message_ids import with_message_id
from qserve.gateway.apis.unserved import why_not_served
from qserve.gateway.services import ByEngine, BySchema, Service
from qserve.wire.dialects.messages import CountTokensRequest, MessagesRequest
from qserve.wire.dialects.responses import InputTokensRequest, ResponsesRequest
from qserve.wire.errors import Dialect
from qserve.wire.openai import ChatCompletionRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest
from qserve.wire.reward.fields import num_slots
from qserve.wire.reward.table import BY_PATH, RewardProtocol
from qserve.worker.base import Api

__all__ = ["BATCH_ROUTES", "CLOSED", "PAGE", "ROUTES", "RelayedRoute", "Route", "dialect_of", "route_template"]

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
    """A route that goes to a worker.

    Attributes:
        services: the kinds of workers that answer it.
        dialect: whose shape its errors have.
        streams: whether the answer can be a stream of events.
        names_model: whether `model` in the body names a served model; some clients always send a constant.
    """

    services: tuple[Service, ...]
    dialect: Dialect = Dialect.OPENAI
    streams: bool = False
    names_model: bool = True


def _chat_sequences(request: ChatCompletionRequest) -> int:
    return request.n


def _completion_sequences(request: CompletionRequest) -> int:
    return request.num_sequences


def _one(request: Any) -> int:
    return 1


def _own(schema: type[Any], count: Callable[[Any], int] | None = None) -> Service:
    """The chat worker of qserve's own engine."""
    return Service("chat", Api.OWN, BySchema(schema, count))


def _vllm(count: Callable[[Mapping[str, Any]], int] | None = None) -> Service:
    """A chat worker on vLLM."""
    return Service("chat", Api.VLLM, ByEngine(count))


def _reward(protocol: RewardProtocol) -> Service:
    """A reward model on any engine. It schedules its requests itself."""
    return Service("reward", None, BySchema(protocol.request, lambda request: num_slots(request.num_texts())))


_VLLM_MESSAGES = Service("chat", Api.VLLM, ByEngine(requests.one), rewrite=with_message_id)
_VLLM_INPUT_TOKENS = Service("chat", Api.VLLM, CountsByAnswering(), RESPONSES, counted)
_VLLM_WITHOUT_BODY = Service("chat", Api.VLLM, None)

_GENERATION = (
    RelayedRoute(
        "POST",
        "/v1/chat/completions",
        "The next turn of a conversation.",
        (_own(ChatCompletionRequest, _chat_sequences), _vllm(requests.n_of_chat)),
        streams=True,
    ),
    RelayedRoute(
        "POST",
        "/v1/completions",
        "Text after a prompt, or the log-likelihood of it.",
        (_own(CompletionRequest, _completion_sequences), _vllm(requests.n_per_prompt)),
        streams=True,
    ),
    RelayedRoute(
        "POST",
        "/v1/chat/completions/batch",
        "Several conversations in one request.",
        (_vllm(requests.one_per_conversation),),
    ),
    RelayedRoute(
        "POST",
        "/v1/responses",
        "OpenAI's Responses API.",
        (_own(ResponsesRequest, _one), _vllm(requests.one)),
        Dialect.RESPONSES,
        streams=True,
    ),
    RelayedRoute(
        "POST",
        "/v1/responses/input_tokens",
        "The prompt tokens of such a request.",
        (_own(InputTokensRequest), _VLLM_INPUT_TOKENS),
        Dialect.RESPONSES,
    ),
    RelayedRoute(
        "GET",
        "/v1/responses/{response_id}",
        "A stored response.",
        (_VLLM_WITHOUT_BODY,),
        Dialect.RESPONSES,
        streams=True,
    ),
    RelayedRoute(
        "POST",
        "/v1/responses/{response_id}/cancel",
        "Ends a response that runs in the background.",
        (_VLLM_WITHOUT_BODY,),
    ),
    RelayedRoute(
        "POST",
        "/v1/messages",
        "Anthropic's Messages API.",
        (_own(MessagesRequest, _one), _VLLM_MESSAGES),
        Dialect.ANTHROPIC,
        streams=True,
    ),
    RelayedRoute(
        "POST",
        "/v1/messages/count_tokens",
        "The prompt tokens of such a request.",
        (_own(CountTokensRequest), _vllm()),
        Dialect.ANTHROPIC,
    ),
    RelayedRoute(
        "POST",
        "/inference/v1/generate",
        "Token ids to token ids.",
        (_vllm(requests.n_of_sampling_params),),
        streams=True,
    ),
)

_SMALLER = (
    RelayedRoute("POST", "/v1/embeddings", "Vectors of texts.", (_vllm(requests.one_per_input),)),
    RelayedRoute(
        "POST", "/generative_scoring", "Probabilities of chosen tokens after texts.", (_vllm(requests.one_per_item),)
    ),
    RelayedRoute("POST", "/v1/systemone", "Decisions from a fixed set of labels.", (_vllm(requests.one_per_question),)),
    RelayedRoute(
        "POST",
        "/tokenize",
        "Token ids of a prompt, or of messages through the template.",
        (_own(TokenizeRequest), _vllm()),
    ),
    RelayedRoute("POST", "/detokenize", "The text of token ids.", (_own(DetokenizeRequest), _vllm())),
    RelayedRoute("POST", "/v1/chat/completions/render", "The prompt that a chat request becomes.", (_vllm(),)),
    RelayedRoute("POST", "/v1/completions/render", "The same of a completions request.", (_vllm(),)),
    RelayedRoute("POST", "/v1/responses/render", "The same of a responses request.", (_vllm(),)),
    RelayedRoute("POST", "/v1/messages/render", "The same of a messages request.", (_vllm(),), Dialect.ANTHROPIC),
)


def _with_rewards(routes: tuple[RelayedRoute, ...]) -> Iterator[RelayedRoute]:
    """`routes` of chat models, those with a reward protocol at their path served by reward models too; then the others
    of these protocols.
    """
    for route in routes:
        if route.path in BY_PATH:
            protocol = BY_PATH[route.path]
            summary = f"{route.summary.rstrip('.')}; from a reward model, {protocol.paths[route.path]}"
            route = replace(route, summary=summary, services=(*route.services, _reward(protocol)))
        yield route
    shared = {route.path for route in routes}
    for path, one in BY_PATH.items():
        if path not in shared:
            yield RelayedRoute("POST", path, one.paths[path], (_reward(one),), one.dialect, names_model=one.names_model)


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

ROUTES: tuple[Route, ...] = (*_with_rewards((*_GENERATION, *_SMALLER)), *BATCH_ROUTES, *_OWN)

_ADMIN = "it administers the engine, which belongs to `qserve up`"
_ANY_BODY = "it takes the bodies of all other routes unchecked; use the route of the request"
_EMBED = "Cohere's format is not served; use /v1/embeddings"
_SPEECH = "speech is not served"

# Routes of vLLM that the gateway does not expose: docs/api.md lists them with the reasons.
CLOSED: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "/pause",
            "/resume",
            "/is_paused",
            "/sleep",
            "/wake_up",
            "/is_sleeping",
            "/reset_prefix_cache",
            "/reset_mm_cache",
            "/reset_encoder_cache",
            "/collective_rpc",
            "/server_info",
            "/start_profile",
            "/stop_profile",
            "/scale_elastic_ep",
            "/is_scaling_elastic_ep",
            "/init_weight_transfer_engine",
            "/shutdown_weight_transfer_engine",
            "/start_weight_update",
            "/start_draft_weight_update",
            "/finish_weight_update",
            "/update_weights",
            "/update_weight_version",
            "/weight_checker",
            "/weight_info",
            "/release_kv_cache_memory",
            "/get_world_size",
            "/v1/load_lora_adapter",
            "/v1/unload_lora_adapter",
            "/inference/v1/abort_requests",
            "/abort_requests",
            "/kv_event_sources",
            "/fault_tolerance/apply",
            "/fault_tolerance/status",
        ),
        _ADMIN,
    ),
    "/load": "/metrics has the load of every worker",
    "/ping": "use /health or /ready",
    "/invocations": _ANY_BODY,
    "/v2/embed": _EMBED,
    **dict.fromkeys(("/v1/chat/completions/derender", "/v1/completions/derender"), "use /detokenize"),
    **dict.fromkeys(("/v1/audio/transcriptions", "/v1/audio/translations", "/v1/realtime"), _SPEECH),
    "/tokenizer_info": "clients that find it tokenize over HTTP, one string a call; use /tokenize",
    "/cohere/v2/chat": "Cohere's format is for Cohere's models",
    "/docs": "use /openapi.json",
    "/redoc": "use /openapi.json",
}

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

    The value of `{model}` may hold slashes, as model names do; any other is one name. No template matches a path that
    means something else in OpenAI's or Anthropic's API (`NOT_SERVED`).
    """
    if path in _FIXED:
        return path
    if why_not_served(path) is not None:
        return "unmatched"
    for begin, end, template in _TEMPLATES:
        value = path[len(begin) : len(path) - len(end)]
        if path == begin + value + end and value and ("{model}" in template or "/" not in value):
            return template
    return "unmatched"
