"""vLLM's wire format: which routes its server may have, and how their requests and errors are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from qserve.engines.vllm.wire import requests
from qserve.engines.vllm.wire.closed import CLOSED
from qserve.engines.vllm.wire.errors import error_of, stream_error_of
from qserve.engines.vllm.wire.input_tokens import RESPONSES, CountsByAnswering, counted
from qserve.engines.vllm.wire.message_ids import with_message_id
from qserve.engines.vllm.wire.reader import ByDocument
from qserve.wire.errors import ApiError
from qserve.worker.wire import WireRoute

__all__ = ["WIRE"]

_BODIES: Mapping[str, Callable[[Mapping[str, Any]], int] | None] = {
    "/v1/chat/completions": requests.n_of_chat,
    "/v1/completions": requests.n_per_prompt,
    "/v1/chat/completions/batch": requests.one_per_conversation,
    "/v1/responses": requests.one,
    "/v1/messages/count_tokens": None,
    "/inference/v1/generate": requests.n_of_sampling_params,
    "/v1/embeddings": requests.one_per_input,
    "/generative_scoring": requests.one_per_item,
    "/v1/systemone": requests.one_per_question,
    "/tokenize": None,
    "/detokenize": None,
    "/v1/chat/completions/render": None,
    "/v1/completions/render": None,
    "/v1/responses/render": None,
    "/v1/messages/render": None,
}
"""Routes with a body, each with the slots that a body takes; None: it never queues."""


class _VllmWire:
    """See `EngineWire`."""

    title: ClassVar[str] = "vllm"
    speaks_our_errors: ClassVar[bool] = False
    takes_client_headers: ClassVar[bool] = False
    continues_streams: ClassVar[bool] = True
    reports_fields: ClassVar[bool] = True
    closed: Mapping[str, str] = CLOSED
    routes: Mapping[tuple[str, str], WireRoute] = {
        **{("POST", path): WireRoute(ByDocument(count)) for path, count in _BODIES.items()},
        ("POST", "/v1/messages"): WireRoute(ByDocument(requests.one), rewrite=with_message_id),
        ("POST", "/v1/responses/input_tokens"): WireRoute(CountsByAnswering(), RESPONSES, counted),
    }

    def error(self, status: int, body: bytes, limit: int | None) -> ApiError | None:
        return error_of(status, body, limit)

    def stream_error(self, events: bytes) -> str:
        return stream_error_of(events)


WIRE = _VllmWire()
