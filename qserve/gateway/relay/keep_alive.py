"""Comments on a stream that waits, so that neither its client nor a proxy takes it for dead."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from starlette.types import Send

__all__ = ["KeepAlive"]

_EVERY_S, _COMMENT = 5.0, b": another worker continues this answer\n\n"


class KeepAlive:
    """`async with KeepAlive(send)` sends one now and then, until `end`; `send` None: none."""

    def __init__(self, send: Send | None) -> None:
        self._send = send
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        if self._send is not None:
            self._task = asyncio.create_task(_comment(self._send))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def end(self) -> bool:
        """The stream goes on; whether it had waited."""
        task, self._task = self._task, None
        return task is not None and task.cancel()


async def _comment(send: Send) -> None:
    while True:
        await asyncio.sleep(_EVERY_S)
        await send({"type": "http.response.body", "body": _COMMENT, "more_body": True})
