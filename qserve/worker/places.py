"""Places that clients take turns at: what one sends in numbers does not hold up another's first."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from qserve.worker.turns import Turns

__all__ = ["Places"]


class Places:
    """`number` in all, one for each client; those that wait go by turns of clients, then in order."""

    def __init__(self, number: int) -> None:
        self._num_free = number
        self._turns: Turns[tuple[str, asyncio.Future[None]]] = Turns()

    @asynccontextmanager
    async def of(self, client: str) -> AsyncIterator[None]:
        """A place, from its turn on until the block ends. A caller that is cancelled waits no longer."""
        granted = asyncio.get_running_loop().create_future()
        self._turns.put(client, client, [(client, granted)])
        self._hand_out()
        began_s = time.monotonic()
        try:
            await granted
            began_s = time.monotonic()
            yield
        finally:
            if granted.cancelled():
                self._turns.drop(lambda waiting: waiting[1] is granted)
            else:
                self._num_free += 1
                self._turns.done(client, client, time.monotonic() - began_s)
            self._hand_out()

    def _hand_out(self) -> None:
        while self._num_free and (following := self._turns.take(of_idle=True)) is not None:
            client, granted = following
            if granted.cancelled():
                self._turns.done(client, client, 0.0)
            else:
                granted.set_result(None)
                self._num_free -= 1
