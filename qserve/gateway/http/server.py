"""Runs the gateway in uvicorn, with the settings of docs/results/gateway.md."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from qserve.errors import QserveError
from qserve.gateway.http.accepting import Acceptor
from qserve.gateway.http.bounded_http import BoundedHttp
from qserve.gateway.http.connections import Connections, limits_of_process, raise_descriptor_limit
from qserve.gateway.http.refused_log import RefusedLog

__all__ = ["BoundedServer", "build_server", "freeze_heap", "run_server"]

# Longer than clients keep idle connections in their pools (httpx: 5 s, aiohttp: 15 s), so that they close first.
_KEEP_ALIVE_S = 75
_BACKLOG = 2048


class BoundedServer(uvicorn.Server):
    """uvicorn's server with the bounded acceptor."""

    servers: list[Any]
    connections: Connections

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            sys.exit(3)  # as uvicorn does
        raise_descriptor_limit()
        self.connections = connections = Connections(limits_of_process())
        protocol = partial(
            BoundedHttp,
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
            _loop=asyncio.get_running_loop(),
            connections=connections,
            refused=RefusedLog(),
        )
        listeners = sockets if sockets is not None else [self._open_listener()]
        self.servers = [Acceptor(listener, protocol, connections) for listener in listeners]
        self.started = True

    def leave(self) -> None:
        """Accept no more connections, and close each of those that are open after its next answer."""
        self.connections.is_leaving = True
        for acceptor in self.servers:
            acceptor.leave()

    def _open_listener(self) -> socket.socket:
        return socket.create_server((self.config.host, self.config.port), backlog=_BACKLOG)


def build_server(app: ASGIApp, host: str, port: int, drain_timeout_s: int | None = None) -> BoundedServer:
    """A server for the running event loop: `await server.serve()`, with `sockets=[…]` if they are open already.

    Headers that name the software, uvicorn's own access log and its trust in proxies' headers are off.
    """
    config = uvicorn.Config(
        app,
        interface="asgi3",
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
    return BoundedServer(config)


def freeze_heap() -> None:
    """Freeze imported objects: a full garbage collection would walk them for up to 50 ms and stall all streams."""
    gc.collect()
    gc.freeze()


async def run_server(server: uvicorn.Server, listener: socket.socket) -> None:
    """Serve until `server.should_exit`, without uvicorn's signal handlers."""

    @contextlib.contextmanager
    def leave_signals_alone() -> Iterator[None]:
        yield

    server.capture_signals = leave_signals_alone  # type: ignore[method-assign]
    freeze_heap()
    try:
        await server.serve(sockets=[listener])
    except SystemExit as error:  # uvicorn's way to say that it could not start
        raise QserveError("the gateway could not start; its log line above says why") from error
