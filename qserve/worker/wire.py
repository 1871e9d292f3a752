"""How the gateway reads and rewrites the requests of a chat worker, and reads its errors: an `EngineWire` per engine.

An engine names its own in the registry (`qserve.planner.engine.Engine`). One that names none takes requests by qserve's
schemas and answers errors in qserve's shape, as qserve's own workers do (`qserve.worker.wires`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from qserve.wire.engine_fields import EngineFields
from qserve.wire.errors import ApiError
from qserve.worker.base import WorkerFacts

__all__ = ["CheckedRequest", "EngineWire", "Reader", "WireRoute", "check_size", "max_tokens_of"]

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
    """

    model: str | None
    num_sequences: int
    max_tokens: int | None = None
    body: bytes | None = None
    cache_salt: str | None = None
    is_salted: bool = False


class Reader(Protocol):
    """Checks the bodies of a route, and describes them."""

    def read(self, body: bytes, path: str, facts: WorkerFacts) -> CheckedRequest:
        """The checked request of a body in UTF-8. Raises ApiError 400 that names what is wrong."""
        ...

    def known_names(self, path: str, facts: WorkerFacts) -> frozenset[str] | None:
        """Top-level fields that a body may have; None: any."""

    def schema_of(self, path: str, fields: EngineFields | None, schemas: dict[str, Any]) -> dict[str, Any]:
        """The JSON schema of a body for /openapi.json. Components that it refers to are added to `schemas`."""
        ...


@dataclass(frozen=True)
class WireRoute:
    """One route of a worker.

    Attributes:
        reader: how a body is checked and counted.
        path: the path at the worker; None: the gateway's own. Bodies for one of OpenAI's paths have OpenAI's fields: a
            request for many sequences may go there as several (`qserve.gateway.relay.portions`).
        rewrite: makes of the worker's answer, or of the first events of a stream, what the client gets.
    """

    reader: Reader
    path: str | None = None
    rewrite: Callable[[bytes], bytes] | None = None


class EngineWire(Protocol):
    """The wire format of an engine's chat workers. All methods are pure.

    Attributes:
        title: in sentences on which engines serve a route.
        routes: what it may serve, by method and path of the gateway's routes (`qserve.gateway.routes`).
        closed: paths of its server that the gateway keeps from clients, each with the reason.
        speaks_our_errors: its errors can go to a client as they are.
        takes_client_headers: it reads the headers of `qserve.wire.worker_headers` that tell of clients.
        continues_streams: it writes and reads `qserve.wire.worker_headers.JOURNAL`.
        reports_fields: its requests and routes are known once it runs (`WorkerFacts.request_fields`).
    """

    title: ClassVar[str]
    routes: Mapping[tuple[str, str], WireRoute]
    closed: Mapping[str, str]
    speaks_our_errors: ClassVar[bool]
    takes_client_headers: ClassVar[bool]
    continues_streams: ClassVar[bool]
    reports_fields: ClassVar[bool]

    def error(self, status: int, body: bytes, limit: int | None) -> ApiError | None:
        """An error that a worker answered; None where `body` is none of its errors.

        `limit`: tokens that the model takes, prompt and answer together; None where no answer is requested.
        """

    def stream_error(self, events: bytes) -> str:
        """The code of the error with which a stream ended that had begun with 200; "" where it ended well."""
        ...


def max_tokens_of(fields: Mapping[str, Any]) -> int | None:
    """Tokens of the answer that a body asks for; None where it does not say."""
    given = (fields.get(name) for name in _LIMITS_OF_ANSWERS)
    return next((value for value in given if isinstance(value, int) and value >= 0), None)


def check_size(fields: Mapping[str, Any], facts: WorkerFacts, num_bytes: int) -> None:
    """Raises ApiError 400 for a prompt that can't fit the model.

    `num_bytes`: of the body. In JSON no text is shorter than it is, and a token id takes a byte and its comma.
    """
    if num_bytes <= min(facts.max_model_len, facts.max_prompt_bytes or num_bytes):
        return
    context = facts.context
    for name in ("prompt", "messages"):
        context.check(fields.get(name))
