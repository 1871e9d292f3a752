"""Bounds on what a client may send, and the wait for it to leave."""

from __future__ import annotations

import asyncio
import re

from starlette.types import Receive, Scope

from qserve.units import format_bytes
from qserve.wire.errors import ApiError

__all__ = ["ClientGone", "read_body", "require_json", "safe_name", "safe_query", "until_gone"]

_NAME = re.compile(r"[A-Za-z0-9_-]{1,200}")
_QUERY = re.compile(
    rb"(?:starting_after=\d{1,9}|stream=(?:true|false))(?:&(?:starting_after=\d{1,9}|stream=(?:true|false)))?"
)


class ClientGone(Exception):
    """The client closed the connection; there is nobody left to answer."""


def require_json(scope: Scope) -> None:
    """415 unless the body is declared as JSON.

    Browsers let a web page post forms and plain text anywhere without asking; JSON they ask for first.
    """
    given = next((value for name, value in scope["headers"] if name == b"content-type"), b"")
    if given.partition(b";")[0].strip().lower() != b"application/json":
        raise ApiError(415, "the body must be JSON; send the header Content-Type: application/json", "not_json")


async def read_body(scope: Scope, receive: Receive, max_bytes: int, idle_timeout_s: float) -> bytes:
    """The whole request body; 413 as soon as it is known to be too long, whether its length was declared or not."""
    _check_declared_length(scope, max_bytes)
    parts: list[bytes] = []
    num_bytes = 0
    try:
        async with asyncio.timeout(idle_timeout_s) as deadline:
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone
                part = message.get("body", b"")
                num_bytes += len(part)
                if num_bytes > max_bytes:
                    raise _too_large(max_bytes)
                parts.append(part)
                if not message.get("more_body", False):
                    return parts[0] if len(parts) == 1 else b"".join(parts)
                deadline.reschedule(asyncio.get_running_loop().time() + idle_timeout_s)
    except TimeoutError:
        raise ApiError(408, f"nothing of the body arrived for {idle_timeout_s:g} s", "body_timeout") from None


def _check_declared_length(scope: Scope, max_bytes: int) -> None:
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit() and int(value) > max_bytes:
            raise _too_large(max_bytes)


def _too_large(max_bytes: int) -> ApiError:
    return ApiError(
        413, f"the body is longer than {format_bytes(max_bytes)}; send less or raise --max-body-mib", "body_too_large"
    )


async def until_gone(receive: Receive) -> None:
    """Returns when the client has closed the connection. Call it after the body was read whole."""
    while (await receive())["type"] != "http.disconnect":
        pass


def safe_name(name: str) -> str:
    """A name from the client's path that may stand in a path at the worker; 404 for anything else."""
    if _NAME.fullmatch(name) is None:
        raise ApiError(404, f"{name[:100]!r} is no id that was given out here", "not_found")
    return name


def safe_query(query: bytes) -> str:
    """The query of GET /v1/responses/{response_id}, to be put behind the path; 400 for names it does not have."""
    if not query:
        return ""
    if _QUERY.fullmatch(query) is None:
        raise ApiError(400, "the query may hold starting_after=<number> and stream=true or false", "unsupported_field")
    return f"?{query.decode()}"
