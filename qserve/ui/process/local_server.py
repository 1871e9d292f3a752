"""The UI on a port of this machine, as `qserve ui` runs it: for local browsers alone, by the gateway's access rules."""

from __future__ import annotations

import asyncio
import os
import socket
import tempfile
from pathlib import Path

from starlette.types import ASGIApp, Receive, Scope, Send

from qserve.gateway.auth import GuardedKeys
from qserve.gateway.middleware import ApiErrors, RequestContext
from qserve.gateway.run_history import RunHistory
from qserve.gateway.settings import GatewaySettings
from qserve.gateway.telemetry.metrics import GatewayMetrics
from qserve.gateway.web import BrowserAccess
from qserve.ui.client.api import Api
from qserve.ui.client.served_models import served_models
from qserve.ui.process.app import build_app
from qserve.ui.process.visitors import Visitors
from qserve.ui.settings import UISettings
from qserve.wire.errors import ApiError

__all__ = ["check_server", "local_app", "serve"]

_FIRST_LOOK_S = 5
_NAMES = ("127.0.0.1", "localhost", "[::1]")


def local_app(ui: ASGIApp, files: Path) -> ASGIApp:
    """Under a name of this machine, the pages' own routes and no others, from the page itself; no sign-in."""

    async def elsewhere(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            raise ApiError(404, "this is not a page of qserve", "route_not_found")
        await ui(scope, receive, send)

    settings = GatewaySettings(allowed_hosts=_NAMES)
    access = BrowserAccess(elsewhere, Visitors(ui, files), settings, GuardedKeys(settings.keys))
    return RequestContext(ApiErrors(access), GatewayMetrics(), None, RunHistory())


def check_server(settings: UISettings) -> str:
    """Why the server can't be asked; "" where it answers."""

    async def look() -> str:
        api = Api(settings)
        try:
            async with asyncio.timeout(_FIRST_LOOK_S):
                return (await served_models(api)).problem
        except TimeoutError:
            return f"{settings.url} gave no answer within {_FIRST_LOOK_S} s"
        finally:
            await api.close()

    return asyncio.run(look()).rstrip(".")


def serve(settings: UISettings, listening: socket.socket) -> None:
    """Serve until Ctrl-C or SIGTERM. `listening` is bound already."""
    import uvicorn

    with tempfile.TemporaryDirectory(prefix="qserve-ui-") as files:
        os.environ["GRADIO_TEMP_DIR"] = files
        app = local_app(build_app(settings), Path(files))
        config = uvicorn.Config(
            app, log_level="warning", access_log=False, server_header=False, lifespan="on", timeout_graceful_shutdown=1
        )
        uvicorn.Server(config).run(sockets=[listening])
