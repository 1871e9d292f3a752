"""The gateway behind uvicorn, with the settings that its figures were measured with."""

from __future__ import annotations

import uvicorn
from starlette.types import ASGIApp

from qserve.gateway.http.bounded_http import BoundedHttp

__all__ = ["build_server"]

# Longer than clients keep idle connections in their pools (httpx: 5 s, aiohttp: 15 s), so that they close first.
_KEEP_ALIVE_S = 75


def build_server(app: ASGIApp, host: str, port: int, drain_timeout_s: int | None = None) -> uvicorn.Server:
    """A server for the running event loop: `await server.serve()`, with `sockets=[…]` if they are open already.

    Headers that name the software, uvicorn's own access log and its trust in proxies' headers are off.
    """
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        loop="uvloop",
        http=BoundedHttp,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=drain_timeout_s,
    )
    return uvicorn.Server(config)
