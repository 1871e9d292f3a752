"""The UI on a port of this machine, as `qserve ui` runs it: for local browsers alone, behind the gateway's own door."""

from __future__ import annotations

import os
import socket
import tempfile
from pathlib import Path

from starlette.types import ASGIApp, Receive, Scope, Send

from qserve.gateway.kept_runs import KeptRuns
from qserve.gateway.metrics import GatewayMetrics
from qserve.gateway.middleware import ApiErrors, RequestContext
from qserve.gateway.settings import GatewaySettings
from qserve.gateway.tracing import NoTraces
from qserve.gateway.web import Door
from qserve.ui.app import build_app
from qserve.ui.settings import UISettings
from qserve.ui.visitors import Visitors
from qserve.wire.errors import ApiError

__all__ = ["behind_door", "serve"]

_NAMES = ("127.0.0.1", "localhost", "[::1]")


def behind_door(ui: ASGIApp, files: Path) -> ASGIApp:
    """Under a name of this machine, the pages' own routes and no others, from the page itself; no sign-in."""

    async def elsewhere(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            raise ApiError(404, "this is no page of qserve", "route_not_found")
        await ui(scope, receive, send)

    door = Door(elsewhere, Visitors(ui, files), GatewaySettings(allowed_hosts=_NAMES))
    return RequestContext(ApiErrors(door), GatewayMetrics(), NoTraces(), KeptRuns())


def serve(settings: UISettings, listening: socket.socket) -> None:
    """Serve until Ctrl-C or SIGTERM. `listening` is bound already."""
    import uvicorn

    with tempfile.TemporaryDirectory(prefix="qserve-ui-") as files:
        os.environ["GRADIO_TEMP_DIR"] = files
        app = behind_door(build_app(settings), Path(files))
        config = uvicorn.Config(
            app, log_level="warning", access_log=False, server_header=False, lifespan="on", timeout_graceful_shutdown=1
        )
        uvicorn.Server(config).run(sockets=[listening])
