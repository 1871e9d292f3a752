"""Administrative routes: the rolling restart over HTTP."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence

from starlette.types import Receive, Scope, Send

from qserve.gateway.auth import AdminKeys
from qserve.gateway.respond import send_json
from qserve.wire.errors import ApiError

__all__ = ["Administration", "Restart", "begun"]

Restart = Callable[[], Awaitable[Sequence[str] | None] | Sequence[str] | None]
"""Starts a rolling restart; returns the names of the workers in order, None while one is running."""


class Administration:
    """Guarded by the admin keys, whatever other keys there are."""

    def __init__(self, keys: AdminKeys, restart: Restart | None) -> None:
        """`restart` None: this gateway can't restart workers."""
        self._keys = keys
        self._restart = restart

    async def restart(self, scope: Scope, receive: Receive, send: Send) -> None:
        """POST /v1/qserve/restart: 202 with the workers that will be restarted, one after the other."""
        await self._keys.check(scope, "send the process of `qserve up` a SIGHUP")
        if self._restart is None:
            raise ApiError(501, "no process supervises the workers here", "not_supervised")
        names = await begun(self._restart)
        if names is None:
            raise ApiError(409, "a rolling restart is running; GET /ready shows its progress", "restart_under_way")
        if not names:
            raise ApiError(409, "no worker is ready, so there is none to restart; GET /ready says why", "none_ready")
        await send_json(send, 202, {"status": "restarting", "workers": list(names)})


async def begun(restart: Restart) -> Sequence[str] | None:
    """The result of `restart`, synchronous or from another process."""
    names = restart()
    return await names if inspect.isawaitable(names) else names
