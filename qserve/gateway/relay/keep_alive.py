"""Comments on a stream that waits, so that neither its client nor a proxy takes it for dead.

It waits for another worker to continue it, or, before it has begun, for its model to be loaded.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from starlette.types import Send

__all__ = ["CONTINUED", "LOADED", "KeepAlive"]

_EVERY_S = 5.0
CONTINUED = b": another worker continues this answer\n\n"
LOADED = b": the model is being loaded\n\n"


class KeepAlive:
    """`async with KeepAlive(send)` sends one now and then, until `end`; `send` None: none."""

    def __init__(self, send: Send | None, comment: bytes = CONTINUED) -> None:
        self._send = send
        self._comment = comment
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        if self._send is not None:
            self._task = asyncio.create_task(_send_comments(self._send, self._comment))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def end(self) -> bool:
        """The stream goes on; whether it had waited."""
        task, self._task = self._task, None
        return task is not None and task.cancel()


async def _send_comments(send: Send, comment: bytes) -> None:
    while True:
        await asyncio.sleep(_EVERY_S)
        await send({"type": "http.response.body", "body": comment, "more_body": True})
