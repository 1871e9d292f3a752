"""Whole answers over plain ASGI: JSON, text, and errors in OpenAI's shape."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from starlette.types import Send

from qserve.wire.errors import ApiError, Dialect

__all__ = ["JSON", "send_body", "send_error", "send_json"]

JSON = b"application/json"


async def send_body(
    send: Send, status: int, body: bytes, content_type: bytes = JSON, headers: Iterable[tuple[bytes, bytes]] = ()
) -> None:
    """Status line, headers and the whole body."""
    fixed = [(b"content-type", content_type), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": [*fixed, *headers]})
    await send({"type": "http.response.body", "body": body})


async def send_json(send: Send, status: int, value: Any) -> None:
    """`value` as JSON."""
    await send_body(send, status, json.dumps(value, ensure_ascii=False).encode())


async def send_error(send: Send, error: ApiError, dialect: Dialect = Dialect.OPENAI) -> None:
    """An error, with the headers that belong to it."""
    headers = [(name.encode(), value.encode()) for name, value in error.headers.items()]
    await send_body(send, error.status, error.body(dialect), headers=headers)
