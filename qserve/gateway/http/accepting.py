"""Accepts connections only while there are descriptors for them.

An event loop's own server accepts all waiting connections at once: with few descriptors left the kernel's EMFILE then
closes honest clients' connections. Here a connection is accepted when there is space for it, and waits in the
kernel's backlog otherwise.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Callable

from qserve.gateway.http.connections import Connections

__all__ = ["Acceptor"]

# Accepted per turn of the loop, so that the connections before can send their heads and are not evicted.
_BATCH = 4
_PAUSE_S = 0.02
_OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Acceptor:
    """Replaces uvicorn's `asyncio.Server`: `sockets`, `close`, `wait_closed`."""

    def __init__(
        self, listener: socket.socket, protocol: Callable[[], asyncio.Protocol], connections: Connections
    ) -> None:
        """Starts at once; needs a running loop. `listener` must be listening."""
        self.sockets = (listener,)
        listener.setblocking(False)
        self._listener = listener
        self._protocol = protocol
        self._connections = connections
        self._is_leaving = False
        self._waiting: asyncio.Future[None] | None = None
        self._task = asyncio.get_running_loop().create_task(self._accept_until_left())

    def leave(self) -> None:
        """Accept no more: another process does. What was accepted is served, what waits in the backlog is its."""
        self._is_leaving = True
        self._wake()

    def close(self) -> None:
        """Stop accepting."""
        self._task.cancel()
        # Before it is closed: where another process has it as well, the kernel goes on telling of a closed descriptor.
        asyncio.get_running_loop().remove_reader(self._listener)
        self._listener.close()

    async def wait_closed(self) -> None:
        """Returns when nothing is accepted any more."""
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def _accept_until_left(self) -> None:
        while not self._is_leaving:
            await self._until_space()
            try:
                for _ in range(_BATCH):
                    if self._connections.is_full or self._is_leaving:
                        break
                    client, _ = self._listener.accept()
                    await self._take(client)
            except BlockingIOError:
                await self._until_one_waits()
            except OSError as error:
                # The client has left, or there is no descriptor: the service continues.
                if error.errno in _OUT_OF_DESCRIPTORS and not self._connections.make_space():
                    await asyncio.sleep(_PAUSE_S)
            await asyncio.sleep(0)

    async def _until_one_waits(self) -> None:
        """Not by `loop.sock_accept`: cancelled at the wrong moment, that loses the connection which it has accepted."""
        loop = asyncio.get_running_loop()
        self._waiting = loop.create_future()
        loop.add_reader(self._listener, self._wake)
        try:
            await self._waiting
        finally:
            self._waiting = None
            if self._listener.fileno() >= 0:  # `close` has done it
                loop.remove_reader(self._listener)

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def _take(self, client: socket.socket) -> None:
        client.setblocking(False)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(self._protocol, client)
        except BaseException:
            client.close()
            raise

    async def _until_space(self) -> None:
        """Evicts the least important connection; waits while all are in use."""
        while self._connections.is_full:
            made_space = self._connections.make_space()
            await asyncio.sleep(0 if made_space else _PAUSE_S)
