"""OpenAI's error shape, and what a failure is called in it.

{"error": {"message": str, "type": str, "param": str | null, "code": str | null}}
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from pydantic import ValidationError

__all__ = ["ApiError", "from_validation"]

_TYPE_OF_STATUS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    429: "rate_limit_error",
}

# A name in an error is the client's own text, and may be as long as its body.
_MAX_NAME = 100


@dataclass(eq=False)  # not frozen: Python writes __traceback__ on exceptions
class ApiError(Exception):
    """An answer that is an error. `code` is the machine's word for it (`context_length_exceeded`, `queue_full`, …)."""

    status: int
    message: str
    code: str
    param: str | None = None
    retry_after_s: int | None = None
    allow: str | None = None

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
        return headers

    def body(self) -> bytes:
        """The JSON that every OpenAI client parses."""
        kind = _TYPE_OF_STATUS.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return json.dumps({"error": error}, ensure_ascii=False).encode()

    def event(self) -> bytes:
        """The same as one server-sent event, for a stream whose status line has already gone out."""
        return b"data: " + self.body() + b"\n\n"


def from_validation(error: ValidationError) -> ApiError:
    """A 400 that names the first wrong field (all of them in the message)."""
    problems = []
    first_param = None
    items = error.errors(include_url=False, include_input=False)
    for item in items:
        if item["type"] == "json_invalid":
            return ApiError(400, f"the body is no JSON: {item['ctx']['error']}", "invalid_json")
        path = ".".join(str(part)[:_MAX_NAME] for part in item["loc"])
        if item["type"] == "extra_forbidden":
            problems.append(f"'{path}' is no field of this request")
        elif item["type"] == "unsupported_field":
            path = str(item["ctx"]["field"])
            problems.append(item["msg"])
        elif path and f"'{path}'" not in item["msg"]:
            problems.append(f"'{path}': {item['msg']}")
        else:
            problems.append(item["msg"])
        first_param = first_param or path or None
    code = (
        "unsupported_field"
        if any(item["type"] in {"extra_forbidden", "unsupported_field"} for item in items)
        else "invalid_value"
    )
    return ApiError(400, "; ".join(problems[:4]), code, first_param)
