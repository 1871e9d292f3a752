"""Sends the lines of a batch through the gateway's own app, like client requests but without key and network.

So each is checked, admitted, relayed, counted and logged like any other, on any engine; `x-qserve-priority` lets all
others go first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from starlette.types import ASGIApp, Message, Scope

from qserve.batches import LineReply
from qserve.gateway.auth import owned_by
from qserve.gateway.own_request import own_request
from qserve.gateway.relay.replicas import Replicas
from qserve.gateway.relay.serving import serving
from qserve.gateway.routes import ROUTES, RelayedRoute
from qserve.wire.errors import ApiError
from qserve.wire.worker_headers import PRIORITY

__all__ = ["IN_BATCH", "GatewayAsService"]

IN_BATCH = "qserve.in_batch"
"""In the scope of a request that is a line of a batch."""


class GatewayAsService:
    """`qserve.batches.Service` over an app that asks for no key."""

    def __init__(self, app: ASGIApp, groups: Sequence[Replicas], max_body_bytes: int) -> None:
        self._app = app
        self._groups = groups
        self._max_body_bytes = max_body_bytes
        self._routes = {one.path: one for one in ROUTES if isinstance(one, RelayedRoute) and one.method == "POST"}

    @property
    def max_body_bytes(self) -> int:
        return self._max_body_bytes

    def models(self) -> tuple[str, ...]:
        return tuple(name for replicas in self._groups for name in replicas.facts.names)

    def refusal(self, endpoint: str, model: str) -> str | None:
        try:
            serving(self._groups, self._routes[endpoint], model)
        except ApiError as error:
            return error.message
        return None

    def free_slots(self, endpoint: str, model: str, owner: str) -> int:
        """Slots for background requests of this owner: one of each replica is left for others."""
        free = 0
        for replicas in self._groups:
            if model in replicas.facts.names:
                free += replicas.free_in_background(owner)
        return free

    async def ask(self, endpoint: str, body: bytes, owner: str) -> LineReply:
        exchange = _Exchange(body)
        await self._app({**_scope(endpoint, body), **owned_by(owner)}, exchange.receive, exchange.send)
        return LineReply(exchange.status, exchange.request_id, b"".join(exchange.parts))


class _Exchange:
    """ASGI `receive` and `send` of one request: its body in one message; the answer is collected."""

    def __init__(self, body: bytes) -> None:
        self._body: bytes | None = body
        self._never: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self.status = 0
        self.request_id = ""
        self.parts: list[bytes] = []

    async def receive(self) -> Message:
        if self._body is None:
            return await self._never  # this client never disconnects before the answer
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers: Any = dict(message["headers"])
            self.request_id = headers.get(b"x-request-id", b"").decode()
        else:
            self.parts.append(message.get("body", b""))


def _scope(path: str, body: bytes) -> Scope:
    return {**own_request(path, len(body), [(PRIORITY.encode(), b"background")]), IN_BATCH: True}
