"""What the supervisor asks a worker itself, over the address of its endpoint."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from qserve.engine.base import WorkerEndpoint
from qserve.gateway.bodies import Body
from qserve.gateway.relay.client import ConnectionBroke, Unreachable, WorkerClient

__all__ = ["Asking"]

_CONNECT_S = 5.0


class Asking:
    """Follows the worker where it moves."""

    def __init__(self, endpoint: WorkerEndpoint) -> None:
        self._endpoint = endpoint
        self._client = self._connected()

    async def ask(self, method: str, path: str, body: bytes, timeout_s: float) -> tuple[int, bytes]:
        """Status and body; (0, b"") when it can't be reached, or does not answer in time."""
        if self._reached != (self._endpoint.address, self._endpoint.key):
            self._client.close()
            self._client = self._connected()
        try:
            async with (
                asyncio.timeout(timeout_s),
                self._client.request(method, path, "supervisor", Body(body)) as reply,
            ):
                return reply.status, await reply.read()
        except (Unreachable, ConnectionBroke, TimeoutError, OSError):
            return 0, b""

    async def work(self) -> dict[str, Any]:
        """What the worker tells of its own work; empty where it tells nothing, or not now."""
        if not self._endpoint.tells_report:
            return {}
        status, body = await self.ask("GET", "/v1/qserve/report", b"", 30.0)
        return dict(json.loads(body)) if status == 200 else {}

    def close(self) -> None:
        """Closes what is idle."""
        self._client.close()

    def _connected(self) -> WorkerClient:
        self._reached = (self._endpoint.address, self._endpoint.key)
        return WorkerClient(*self._reached, connect_timeout_s=_CONNECT_S)
