"""Echo's wire format: POST /say takes {"model", "words", "most", "kind", "stream", "usage"}; errors are {"oops"}."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from qserve.wire.body_scan import read_object
from qserve.wire.engine_fields import EngineFields
from qserve.wire.errors import ApiError, unknown_field
from qserve.worker.base import WorkerFacts
from qserve.worker.wire import CheckedRequest, WireRoute, max_tokens_of

__all__ = ["WIRE"]

_FIELDS = frozenset({"model", "messages", "prompt", "max_tokens", "max_completion_tokens", "stream", "stream_options"})
_WITHOUT_EFFECT = frozenset({"temperature", "top_p", "seed", "stop", "ignore_eos", "min_tokens", "n", "logprobs"})


@dataclass(frozen=True)
class _Reader:
    """See `Reader`. `kind`: the object that OpenAI's answer is."""

    kind: str

    def read(self, body: bytes, path: str, facts: WorkerFacts) -> CheckedRequest:
        given = read_object(body)
        for name in given:
            if name not in _FIELDS | _WITHOUT_EFFECT:
                raise unknown_field(name, _FIELDS)
        words = given["messages"][-1]["content"] if given.get("messages") else given.get("prompt", "")
        most = max_tokens_of(given)
        asked = {
            "model": given.get("model") or facts.models[0],
            "words": words if isinstance(words, str) else " ".join(map(str, words)),
            "most": 16 if most is None else most,
            "kind": self.kind,
            "stream": bool(given.get("stream")),
            "usage": bool((given.get("stream_options") or {}).get("include_usage")),
        }
        return CheckedRequest(given.get("model"), 1, most, json.dumps(asked).encode())

    def known_names(self, path: str, facts: WorkerFacts) -> frozenset[str]:
        return _FIELDS | _WITHOUT_EFFECT

    def schema_of(self, path: str, fields: EngineFields | None, schemas: dict[str, Any]) -> dict[str, Any]:
        return {"type": "object", "properties": {name: {} for name in sorted(_FIELDS | _WITHOUT_EFFECT)}}


def _with_id(answer: bytes) -> bytes:
    return answer.replace(b'"id":"echo"', b'"id":"chatcmpl-echo"', 1)


class _EchoWire:
    """See `EngineWire`."""

    title: ClassVar[str] = "echo"
    speaks_our_errors: ClassVar[bool] = False
    takes_client_headers: ClassVar[bool] = False
    continues_streams: ClassVar[bool] = False
    reports_fields: ClassVar[bool] = False
    closed: Mapping[str, str] = {"/shutdown": "it ends the worker, which belongs to `qserve up`"}
    routes: Mapping[tuple[str, str], WireRoute] = {
        ("POST", "/v1/chat/completions"): WireRoute(_Reader("chat.completion"), "/say", _with_id),
        ("POST", "/v1/completions"): WireRoute(_Reader("text_completion"), "/say", _with_id),
    }

    def error(self, status: int, body: bytes, limit: int | None) -> ApiError | None:
        try:
            why = json.loads(body)["oops"]
        except (ValueError, KeyError, TypeError):
            return None
        return ApiError(status, f"echo refuses this: {why}", "invalid_value", "max_tokens")

    def stream_error(self, events: bytes) -> str:
        return "worker_error" if b'"oops"' in events else ""


WIRE = _EchoWire()
