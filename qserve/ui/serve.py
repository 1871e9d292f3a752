"""The UI on a port of this machine, as `qserve ui` runs it: for local browsers alone, with the gateway's own rules."""

from __future__ import annotations

import socket

from starlette.types import ASGIApp, Receive, Scope, Send

from qserve.engine.asgi import to_response
from qserve.gateway.auth import check_host
from qserve.gateway.web.door import hardened
from qserve.gateway.web.origin import check_origin
from qserve.gateway.web.routes import ui_route
from qserve.ui.app import build_app
from qserve.ui.settings import UISettings
from qserve.wire.errors import ApiError

__all__ = ["LocalDoor", "serve"]

_NAMES = ("127.0.0.1", "localhost", "[::1]")


class LocalDoor:
    """ASGI middleware: the pages' own routes and no others, under a name of this machine, from the page itself."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            check_host(scope, _NAMES)
            check_origin(scope, has_session=True)
            if ui_route(scope["method"], scope["path"]) is None:
                raise ApiError(404, "this is no page of qserve", "route_not_found")
        except ApiError as refused:
            await to_response(refused)(scope, receive, send)
            return
        await self._app(scope, receive, hardened(send))


def serve(settings: UISettings, listening: socket.socket) -> None:
    """Serve until Ctrl-C or SIGTERM. `listening` is bound already."""
    import uvicorn

    app = LocalDoor(build_app(settings))
    config = uvicorn.Config(app, log_level="warning", access_log=False, lifespan="on", timeout_graceful_shutdown=1)
    uvicorn.Server(config).run(sockets=[listening])
