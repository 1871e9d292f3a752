"""The wire format of qserve's own workers, and those of engines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pkgutil import resolve_name
from types import MappingProxyType
from typing import Any, ClassVar

from qserve.wire.dialects.messages import CountTokensRequest, MessagesRequest
from qserve.wire.dialects.responses import InputTokensRequest, ResponsesRequest
from qserve.wire.engine_fields import EngineFields
from qserve.wire.errors import ApiError
from qserve.wire.openai import ChatCompletionRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest, Wire
from qserve.worker.base import WorkerFacts
from qserve.worker.wire import CheckedRequest, EngineWire, WireRoute, check_size, max_tokens_of

__all__ = ["BySchema", "all_wires", "wire_named"]


@dataclass(frozen=True)
class BySchema:
    """A body that one of qserve's own schemas describes; `count` is None for work that never queues."""

    schema: type[Wire]
    count: Callable[[Any], int] | None = None

    def read(self, body: bytes, path: str, facts: WorkerFacts) -> CheckedRequest:
        request: Any = self.schema.read(body)
        if facts.role == "chat":  # reward models may truncate
            check_size(request.__dict__, facts, len(body))
        return CheckedRequest(
            request.model,
            self.count(request) if self.count is not None else 0,
            max_tokens_of(vars(request)),
            cache_salt=getattr(request, "cache_salt", None),
        )

    def known_names(self, path: str, facts: WorkerFacts) -> frozenset[str]:
        return self.schema.known_names()

    def schema_of(self, path: str, fields: EngineFields | None, schemas: dict[str, Any]) -> dict[str, Any]:
        """The schema itself is a component already."""
        return {"$ref": f"#/components/schemas/{self.schema.__name__}"}


def _chat_sequences(request: ChatCompletionRequest) -> int:
    return request.n


def _completion_sequences(request: CompletionRequest) -> int:
    return request.num_sequences


def _one(request: Any) -> int:
    return 1


class _OwnWire:
    """See `EngineWire`."""

    title: ClassVar[str] = "transformers"
    speaks_our_errors: ClassVar[bool] = True
    takes_client_headers: ClassVar[bool] = True
    continues_streams: ClassVar[bool] = True
    reports_fields: ClassVar[bool] = False
    closed: Mapping[str, str] = MappingProxyType({})
    routes: Mapping[tuple[str, str], WireRoute] = {
        ("POST", path): WireRoute(BySchema(schema, count))
        for path, schema, count in (
            ("/v1/chat/completions", ChatCompletionRequest, _chat_sequences),
            ("/v1/completions", CompletionRequest, _completion_sequences),
            ("/v1/responses", ResponsesRequest, _one),
            ("/v1/responses/input_tokens", InputTokensRequest, None),
            ("/v1/messages", MessagesRequest, _one),
            ("/v1/messages/count_tokens", CountTokensRequest, None),
            ("/tokenize", TokenizeRequest, None),
            ("/detokenize", DetokenizeRequest, None),
        )
    }

    def error(self, status: int, body: bytes, limit: int | None) -> ApiError | None:
        """Never called: its errors go to clients as they are."""
        return None

    def stream_error(self, events: bytes) -> str:
        return ""


_OWN = _OwnWire()


@cache
def wire_named(dotted: str) -> EngineWire:
    """The wire format that `WorkerFacts.wire` names."""
    wire: EngineWire = resolve_name(dotted) if dotted else _OWN
    return wire


def all_wires() -> Iterator[EngineWire]:
    """qserve's own wire format, then those of the registered engines."""
    from qserve.planner.engine import engines  # a process that checks large bodies does without the planner

    yield _OWN
    yield from (wire_named(engine.wire) for engine in engines() if engine.wire)
