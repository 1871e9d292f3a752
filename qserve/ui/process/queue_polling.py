"""How often Gradio's queue looks for work: its own rate, a thousand times a second, takes 3 % of a core while idle.

Gradio 6.31 has no option for it; its `Queue` reads these two attributes anew before every sleep. They are touched here
and nowhere else, and a test holds that the tested release has them.
"""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

__all__ = ["PollingOnDemand"]

_IDLE_S = 0.1
_BUSY_S = 0.005
_BUSY_FOR_S = 10.0
_PROGRESS_S = 0.5
"""Nothing here uses Gradio's progress bars."""
_PRESENCE = ("/gradio_api/app_id", b"active")


class PollingOnDemand:
    """ASGI middleware: the queue is polled fast for some seconds after somebody was seen at a page, else slowly.

    The page says that somebody types or points before there is anything to do (`static/reconnect.js`), so a click waits
    for no slow poll.
    """

    def __init__(self, app: ASGIApp, blocks: Any) -> None:
        """`blocks`: with their queue made."""
        self._app = app
        self._queue = blocks._queue
        self._slow_down: asyncio.TimerHandle | None = None
        self._queue.progress_update_sleep_when_free = _PROGRESS_S
        self._queue.sleep_when_free = _IDLE_S

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (scope["path"], scope["query_string"]) == _PRESENCE:
            self._hurry()
        await self._app(scope, receive, send)

    def _hurry(self) -> None:
        if self._slow_down is not None:
            self._slow_down.cancel()
        self._queue.sleep_when_free = _BUSY_S
        self._slow_down = asyncio.get_running_loop().call_later(_BUSY_FOR_S, self._rest)

    def _rest(self) -> None:
        self._queue.sleep_when_free = _IDLE_S
