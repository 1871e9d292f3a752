"""The old service's side of a takeover: it tells of itself, hands its workers over, and goes on if the new one fails.

A new service asks three things over the socket in the private folder: what this one is (`about`); its port and its
workers (`take`), from where on nobody restarts workers here; and that this one leaves (`leave`). Until then the end of
the connection, however it came, means that this service goes on as if nothing had happened.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from qserve.supervisor.takeover.handed import About, Handed
from qserve.supervisor.takeover.messages import SOCKET, peer_of, take_in, write_out

__all__ = ["Offer", "Offerable"]

_log = logging.getLogger("qserve.supervisor")
# From `take` to `leave`; a new service that hangs must not keep the workers unwatched.
_LIMIT_S = 120.0


class Offerable(Protocol):
    """A service that runs."""

    def about(self) -> About:
        """What it is now."""

    def hand(self) -> tuple[Handed, list[int], list[int]]:
        """What is handed over, its descriptors, and those of them that are closed once they are sent."""

    async def pause(self) -> None:
        """Stop what acts on its workers, beside what `Offer.watch` runs."""

    def resume(self) -> None:
        """Begin that again: nothing was handed over."""

    def given(self) -> None:
        """Port and workers are the new service's."""


class Offer:
    """Offers a service to the next one while it serves."""

    def __init__(self, offered: Offerable) -> None:
        """Nothing is offered yet."""
        self._offered = offered
        self._taker: socket.socket | None = None
        self._asked = asyncio.Event()
        self._is_paused = asyncio.Event()
        self._is_over = asyncio.Event()
        self.has_left = False
        """Port and workers belong to the new service."""

    @contextlib.asynccontextmanager
    async def open_in(self, private: Path) -> AsyncIterator[None]:
        """Offered within the block, where the platform has what it takes."""
        if not hasattr(os, "pidfd_open"):
            yield
            return
        with socket.socket(socket.AF_UNIX) as listener:
            mask = os.umask(0o177)  # mode 0600 from its first moment on
            try:
                listener.bind(str(private / SOCKET))
            finally:
                os.umask(mask)
            listener.listen()
            listener.setblocking(False)
            offering = asyncio.create_task(self._offer(listener))
            try:
                yield
            finally:
                offering.cancel()
                await asyncio.gather(offering, return_exceptions=True)

    async def watch(self, watch: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Runs `watch`, which watches the workers, except while another service has them. Returns when it keeps them.

        Raises what `watch` raises.
        """
        while not self.has_left:
            watching, asked = asyncio.create_task(watch()), asyncio.create_task(self._asked.wait())
            try:
                await asyncio.wait([watching, asked], return_when=asyncio.FIRST_COMPLETED)
                if watching.done():
                    watching.result()
                    return
            finally:
                for task in (watching, asked):
                    task.cancel()
                await asyncio.gather(watching, asked, return_exceptions=True)
            await self._offered.pause()
            self._is_paused.set()
            await self._is_over.wait()
            for event in (self._asked, self._is_paused, self._is_over):
                event.clear()
            if not self.has_left:
                self._offered.resume()

    async def _offer(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as talks:
            while True:
                connection, _ = await loop.sock_accept(listener)
                connection.setblocking(False)
                talks.create_task(self._talk(connection))

    async def _talk(self, connection: socket.socket) -> None:
        with connection:
            pid, uid = peer_of(connection)
            if uid != os.getuid():
                _log.warning("user %d wants to take over from this service and may not", uid)
                return
            try:
                async with asyncio.timeout(_LIMIT_S):
                    while not self.has_left:
                        await self._answer(connection, await take_in(connection))
            except (OSError, TimeoutError) as error:
                if self._taker is connection:
                    _log.warning("process %d wanted to take over and did not (%s); this service goes on", pid, error)
            finally:
                if self._taker is connection:
                    self._taker = None
                    self._is_over.set()

    async def _answer(self, connection: socket.socket, asked: Any) -> None:
        about = self._offered.about()
        if self._asked.is_set() and self._taker is not connection:
            about = replace(about, why_not="another service takes over from it now")
        if asked == "take" and not about.why_not:
            self._taker = connection
            self._asked.set()
            await self._is_paused.wait()
            handed, descriptors, sent = self._offered.hand()
            try:
                await write_out(connection, handed, descriptors)
            finally:
                for one in sent:
                    os.close(one)
        elif asked == "leave" and self._taker is connection:
            self.has_left = True
            self._offered.given()
            await write_out(connection, "left")
        else:
            await write_out(connection, about.to_document())
