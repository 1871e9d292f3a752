"""Counts the requests in flight, so that a drain knows when it is done."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.types import ASGIApp, Receive, Scope, Send

__all__ = ["InFlight"]


@dataclass
class InFlight:
    """ASGI middleware, around all others."""

    app: ASGIApp
    num_requests: int = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not (scope["method"] == "POST" or _is_followed(scope)):
            await self.app(scope, receive, send)
            return
        self.num_requests += 1
        try:
            await self.app(scope, receive, send)
        finally:
            self.num_requests -= 1


def _is_followed(scope: Scope) -> bool:
    """Whether it streams the events of a background response, which others POST."""
    return bool(b"stream=true" in scope["query_string"] and scope["path"].startswith("/v1/responses/"))
