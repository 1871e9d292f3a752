"""Errors in the formats of the supported APIs.

OpenAI     {"error": {"message": str, "type": str, "param": str | null, "code": str | null}}
Anthropic  {"type": "error", "error": {"type": str, "message": str}}
TEI        {"error": str, "error_type": str}, of text-embeddings-inference
"""

from __future__ import annotations

import difflib
import enum
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from qserve.wire.overflow import Overflow

__all__ = ["MAX_NAME", "ApiError", "Dialect", "from_failure", "internal_error", "too_long", "unknown_field"]

_TYPE_OF_STATUS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    409: "conflict_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    429: "rate_limit_error",
}

_ANTHROPIC_TYPE_OF_STATUS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
_TEI_TYPE_OF_STATUS = {429: "overloaded", 503: "unhealthy"}
# Of what a worker's engine says by code alone (`qserve.errors.RequestFailed`): all else is a failure of the worker.
_STATUS_OF_FAILURE = {
    "out_of_memory": 503,
    "context_length_exceeded": 400,
    "empty_prompt": 400,
    "worker_stopping": 503,
    "invalid_grammar": 400,
    "grammar_too_complex": 400,
}
# And what a reward model, a rule or a judge says (`qserve.reward.failures`).
_STATUS_OF_FAILURE |= dict.fromkeys(
    (
        "invalid_value",
        "empty_input",
        "no_chat_template",
        "no_eos",
        "no_steps",
        "position_not_served",
        "missing_reference",
    ),
    400,
) | {"judge_failed": 502, "judge_unparsable": 502, "worker_error": 502, "worker_unreachable": 503}
_RETRY_AFTER_S = {"judge_failed": 5, "worker_unreachable": 5}
# Anthropic's SDK runs its loop of tools without a stored conversation once it reads these details.
_NO_THREADS = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}


class Dialect(enum.StrEnum):
    """Whose shape an error has. RESPONSES differs from OPENAI inside streams only, where events have names."""

    OPENAI = "openai"
    RESPONSES = "responses"
    ANTHROPIC = "anthropic"
    TEI = "tei"


# A name in an error is the client's own text, and may be as long as its body.
MAX_NAME = 100


@dataclass(eq=False)  # not frozen: Python writes __traceback__ on exceptions
class ApiError(Exception):
    """An answer that is an error. `code` is the machine's word for it (`context_length_exceeded`, `queue_full`, …)."""

    status: int
    message: str
    code: str
    param: str | None = None
    retry_after_s: int | None = None
    allow: str | None = None
    for_anthropic: str | None = None
    """The message where Anthropic's clients know another one by its text (`qserve.wire.overflow`)."""

    @classmethod
    def from_body(cls, status: int, body: bytes) -> ApiError:
        """From an answer in OpenAI's shape; of any other body its beginning is the message."""
        try:
            error = json.loads(body)["error"]
            return cls(status, str(error["message"]), str(error.get("code") or "error"), error.get("param"))
        except (ValueError, KeyError, TypeError, AttributeError):
            return cls(status, body[:500].decode(errors="replace") or f"status {status}", "error")

    def __str__(self) -> str:
        return self.message

    @property
    def headers(self) -> dict[str, str]:
        """HTTP headers that belong to this error."""
        headers = {} if self.retry_after_s is None else {"retry-after": str(self.retry_after_s)}
        if self.status == 401:
            headers["www-authenticate"] = "Bearer"
        if self.allow is not None:
            headers["allow"] = self.allow
        if self.code == "unsupported_encoding":
            headers["accept-encoding"] = "identity"  # RFC 9110, section 15.5.16
        return headers

    @property
    def fields(self) -> dict[str, Any]:
        """What it was made of, for another process: `ApiError(**fields)`."""
        names = ("status", "message", "code", "param", "retry_after_s", "allow", "for_anthropic")
        return {name: getattr(self, name) for name in names}

    def body(self, dialect: Dialect = Dialect.OPENAI) -> bytes:
        """The JSON that every client of the dialect parses."""
        shapes = {Dialect.ANTHROPIC: self._anthropic, Dialect.TEI: self._tei}
        value = shapes.get(dialect, self._openai)()
        return json.dumps(value, ensure_ascii=False).encode()

    def event(self, dialect: Dialect = Dialect.OPENAI) -> bytes:
        """The same as one server-sent event, for a stream whose status line has already gone out."""
        if dialect is Dialect.RESPONSES:
            # The documented event has its fields at the top; OpenAI's clients raise on an object `error`.
            event = {"type": "error", "code": self.code, "message": self.message, "param": self.param, **self._openai()}
            return b"event: error\ndata: " + json.dumps(event, ensure_ascii=False).encode() + b"\n\n"
        name = b"event: error\n" if dialect is Dialect.ANTHROPIC else b""
        return name + b"data: " + self.body(dialect) + b"\n\n"

    def _openai(self) -> dict[str, Any]:
        kind = _TYPE_OF_STATUS.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def _tei(self) -> dict[str, Any]:
        kind = _TEI_TYPE_OF_STATUS.get(self.status, "backend" if self.status >= 500 else "validation")
        return {"error": self.message, "error_type": kind, "code": self.code}

    def _anthropic(self) -> dict[str, Any]:
        fallback = "api_error" if self.status >= 500 else "invalid_request_error"
        kind = _ANTHROPIC_TYPE_OF_STATUS.get(self.status, fallback)
        error: dict[str, Any] = {"type": kind, "message": self.for_anthropic or self.message}
        if (self.code, self.param) == ("unsupported_field", "thread"):
            error["details"] = _NO_THREADS
        return {"type": "error", "error": error}


def too_long(overflow: Overflow, advice: str, param: str | None = None) -> ApiError:
    """A 400 for what does not fit the model, in the words that clients look for; `advice` follows them."""
    message, for_anthropic = f"{overflow.for_openai()}: {advice}", f"{overflow.for_anthropic()}: {advice}"
    return ApiError(400, message, "context_length_exceeded", param, for_anthropic=for_anthropic)


def from_failure(code: str, message: str, param: str | None = None) -> ApiError:
    """What HTTP says of a `RequestFailed`: its code stays the machine's word for it."""
    status = _STATUS_OF_FAILURE.get(code, 500)
    return ApiError(status, message, code, param, retry_after_s=_RETRY_AFTER_S.get(code))


def internal_error(where: str = "") -> ApiError:
    """A fault of qserve's own; `where`: how its log names it."""
    return ApiError(500, f"an internal error of qserve; its log has the details{where}", "internal_error")


def unknown_field(path: str, known: Iterable[str] = (), hint: str = "") -> ApiError:
    """A 400 that names a field which nobody would read, and what was probably meant: `hint`, or one of `known`."""
    path = path[: 4 * MAX_NAME]
    message = f"'{path}' is not a field of this request{hint}" if hint else _unknown(path, known)
    return ApiError(400, message, "unsupported_field", path)


def _unknown(path: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(path, known, n=1, cutoff=0.75) if len(path) <= MAX_NAME else []
    hint = f"; did you mean '{near[0]}'?" if near else ""
    return f"'{path}' is not a field of this request{hint}"
