"""Background responses in a gateway process: the coordinator runs and keeps them (`hosted_runs.py`).

A body goes over in pieces, each answered before the next: the coordinator's channel is everybody's.
"""

from __future__ import annotations

import itertools
from typing import Any

from qserve.gateway.background.runs import Asker, EventPage
from qserve.gateway.processes.channel import Channel

__all__ = ["RemoteRuns"]

_PIECE_LETTERS = 64 * 1024


class RemoteRuns:
    """`Runs` in a gateway process. A lost channel ends the process, so nothing is tried again."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._numbers = itertools.count()

    async def create(self, asker: Asker, body: bytes) -> str:
        text, number = body.decode(), next(self._numbers)
        try:
            for begin in range(0, len(text), _PIECE_LETTERS):
                await self._asked("piece", number, text[begin : begin + _PIECE_LETTERS])
            return str(await self._asked("create", asker, number))
        finally:
            self._channel.notify("response dropped", number)

    async def document(self, response_id: str, owner: str) -> str:
        return str(await self._asked("document", response_id, owner))

    async def events(self, response_id: str, owner: str, after: int) -> EventPage:
        return EventPage(*await self._asked("events", response_id, owner, after))

    async def cancel(self, response_id: str, owner: str) -> str:
        return str(await self._asked("cancel", response_id, owner))

    async def delete(self, response_id: str, owner: str) -> None:
        await self._asked("delete", response_id, owner)

    async def _asked(self, method: str, *arguments: Any) -> Any:
        return await self._channel.request("response", method, *arguments)
