"""Requests of the supervisor itself to a worker, at its address."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from qserve.gateway.bodies import Body
from qserve.gateway.relay.client import ConnectionBroke, Unreachable, WorkerClient
from qserve.worker.base import WorkerStatus

__all__ = ["WorkerRequests"]

_CONNECT_S = 5.0


class WorkerRequests:
    """A client of one worker that follows it to a new address."""

    def __init__(self, status: WorkerStatus) -> None:
        self._status = status
        self._client = self._connect()

    async def send(self, method: str, path: str, body: bytes, timeout_s: float) -> tuple[int, bytes]:
        """Status and body; (0, b"") when it can't be reached, or does not answer in time."""
        if self._reached != (self._status.facts.address, self._status.facts.key):
            self._client.close()
            self._client = self._connect()
        try:
            async with (
                asyncio.timeout(timeout_s),
                self._client.request(method, path, "supervisor", Body(body)) as reply,
            ):
                return reply.status, await reply.read()
        except (Unreachable, ConnectionBroke, TimeoutError, OSError):
            return 0, b""

    async def work(self) -> dict[str, Any]:
        """The worker's report on its work (GET /v1/qserve/report); empty if it has none, or does not answer."""
        if not self._status.facts.has_report:
            return {}
        status, body = await self.send("GET", "/v1/qserve/report", b"", 30.0)
        return dict(json.loads(body)) if status == 200 else {}

    def close(self) -> None:
        """Closes what is idle."""
        self._client.close()

    def _connect(self) -> WorkerClient:
        self._reached = (self._status.facts.address, self._status.facts.key)
        return WorkerClient(*self._reached, connect_timeout_s=_CONNECT_S)
