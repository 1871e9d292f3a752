"""Services of relayed routes: workers of one role and API, and how requests to them are checked and counted.

The same path can mean different things to different models (`/classify` of a reward host and of vLLM): a route has a
`Service` for each, and the worker that serves the request's model picks one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from pydantic_core import to_json

from qserve.engines.vllm.wire import requests
from qserve.engines.vllm.wire.agents import as_vllm_reads
from qserve.engines.vllm.wire.forms import in_engine_words
from qserve.engines.vllm.wire.schemas import with_enforceable_schemas
from qserve.engines.vllm.wire.thought_first import with_thought_first
from qserve.wire.errors import ApiError
from qserve.wire.openai import Wire
from qserve.worker.base import Api, WorkerFacts

__all__ = ["ByEngine", "BySchema", "CheckedRequest", "Reader", "Service"]

_LIMITS_OF_ANSWERS = ("max_completion_tokens", "max_tokens", "max_output_tokens")


@dataclass(frozen=True, slots=True)
class CheckedRequest:
    """What the gateway knows of a checked request.

    Attributes:
        model: the requested model, if any.
        num_sequences: slots it takes at the worker; 0 for work so small that it never queues.
        max_tokens: of an answer; 0: none is asked for; None if the request does not say.
        body: the rewritten body for the worker; None: the client's, byte for byte.
        cache_salt: with whom it shares cached prompts, as the client says.
        is_salted: whether the worker takes a `cache_salt` in the body.
        path: where the worker is asked; None: the route's own.
    """

    model: str | None
    num_sequences: int
    max_tokens: int | None = None
    body: bytes | None = None
    cache_salt: str | None = None
    is_salted: bool = False
    path: str | None = None


class Reader(Protocol):
    """Checks a body, in UTF-8. Raises ApiError 400 that names what is wrong."""

    def read(self, body: bytes, path: str, facts: WorkerFacts) -> CheckedRequest: ...

    def known_names(self, path: str, facts: WorkerFacts) -> frozenset[str] | None:
        """Top-level fields that a body may have; None: any."""


@dataclass(frozen=True)
class BySchema:
    """A body that one of our own schemas describes; `count` is None for work that never queues."""

    schema: type[Wire]
    count: Callable[[Any], int] | None = None

    def read(self, body: bytes, path: str, facts: WorkerFacts) -> CheckedRequest:
        request: Any = self.schema.read(body)
        if facts.role == "chat":  # reward models may truncate
            _check_size(request.__dict__, facts, len(body))
        return CheckedRequest(
            request.model,
            self.count(request) if self.count is not None else 0,
            _max_tokens(vars(request)),
            cache_salt=getattr(request, "cache_salt", None),
        )

    def known_names(self, path: str, facts: WorkerFacts) -> frozenset[str]:
        return self.schema.known_names()


@dataclass(frozen=True)
class ByEngine:
    """A body that the engine's own OpenAPI document describes (`WorkerFacts.request_fields`)."""

    count: Callable[[Mapping[str, Any]], int] | None = None

    def read(self, body: bytes, path: str, facts: WorkerFacts) -> CheckedRequest:
        fields = facts.request_fields
        if fields is None:
            raise ApiError(503, "the worker has not reported its routes yet", "worker_not_ready", retry_after_s=2)
        given = requests.read_body(body)
        read = in_engine_words(path, as_vllm_reads(path, given), takes_one_system=facts.takes_one_system)
        value = requests.with_structured_outputs(path, read)
        requests.check_body(fields, path, value)
        _check_size(value, facts, len(body))
        said = requests.without_no_tools(value)
        changed = with_enforceable_schemas(said, facts.schema_library) or said
        if facts.thinks_in_text and facts.schema_library == "xgrammar" and path == "/v1/chat/completions":
            changed = with_thought_first(changed) or changed
        return CheckedRequest(
            value.get("model"),
            self.count(value) if self.count is not None else 0,
            _max_tokens(value),
            None if changed is given else to_json(changed),
            value.get("cache_salt"),
            "cache_salt" in (fields.names(path, "POST") or ()),
        )

    def known_names(self, path: str, facts: WorkerFacts) -> frozenset[str] | None:
        fields = facts.request_fields
        return None if fields is None else requests.known_names(fields, path)


def _max_tokens(fields: Mapping[str, Any]) -> int | None:
    given = (fields.get(name) for name in _LIMITS_OF_ANSWERS)
    return next((value for value in given if isinstance(value, int) and value >= 0), None)


def _check_size(fields: Mapping[str, Any], facts: WorkerFacts, num_bytes: int) -> None:
    """`num_bytes`: of the body. In JSON no text is shorter than it is, and a token id takes a byte and its comma."""
    if num_bytes <= min(facts.max_model_len, facts.max_prompt_bytes or num_bytes):
        return
    context = facts.context
    for name in ("prompt", "messages"):
        context.check(fields.get(name))


@dataclass(frozen=True)
class Service:
    """One kind of worker that serves a route.

    Attributes:
        role: `WorkerFacts.role`: `chat` or `reward`.
        api: `WorkerFacts.api`; None: whatever runs the role.
        reader: how a body is checked and counted; None for a route without a body.
        path: the route of the worker that answers; None: the same.
        rewrite: makes of the worker's answer, or of the first events of a stream, what the client gets.
    """

    role: str
    api: Api | None
    reader: Reader | None
    path: str | None = None
    rewrite: Callable[[bytes], bytes] | None = None

    def fits(self, facts: WorkerFacts) -> bool:
        """Whether the worker is of this kind."""
        return facts.role == self.role and self.api in (None, facts.api)

    def serves(self, method: str, path: str, facts: WorkerFacts) -> bool:
        """Whether the worker serves this route: vLLM reports its routes once it is ready."""
        fields = facts.request_fields if self.reader is not None else None
        return self.fits(facts) and (fields is None or (self.path or path, method) in fields.routes)
