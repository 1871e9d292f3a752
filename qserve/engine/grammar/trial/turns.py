"""Places that clients take turns at: what one sends in numbers does not hold up another's first."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

__all__ = ["Turns"]


class Turns:
    """`num_places` in all, at most `of_one` for each client; those that wait go by turns of clients, then in order."""

    def __init__(self, num_places: int, *, of_one: int) -> None:
        self._num_free = num_places
        self._of_one = of_one
        self._clients: dict[str, _Client] = {}
        self._turns = itertools.count(1)

    @asynccontextmanager
    async def of(self, client: str) -> AsyncIterator[None]:
        """A place, from its turn on until the block ends. A caller that is cancelled waits no longer."""
        place = asyncio.get_running_loop().create_future()
        self._clients.setdefault(client, _Client()).waiting.append(place)
        self._hand_out()
        try:
            await place
            yield
        finally:
            self._leave(client, place)

    def _leave(self, client: str, place: asyncio.Future[None]) -> None:
        one = self._clients.get(client, _Client())  # others that were cancelled with it may have gone before
        if not place.cancelled():
            self._num_free += 1
            one.num_held -= 1
        elif place in one.waiting:
            one.waiting.remove(place)
        if not one.waiting and not one.num_held:
            self._clients.pop(client, None)
        self._hand_out()

    def _hand_out(self) -> None:
        while self._num_free:
            could = [one for one in self._clients.values() if one.waiting and one.num_held < self._of_one]
            if not could:
                return
            one = min(could, key=lambda one: one.last_turn)
            place = one.waiting.popleft()
            if not place.cancelled():
                place.set_result(None)
                one.last_turn = next(self._turns)
                one.num_held += 1
                self._num_free -= 1


@dataclass
class _Client:
    """One that waits or holds a place. `last_turn`: 0 before its first."""

    waiting: deque[asyncio.Future[None]] = field(default_factory=deque)
    num_held: int = 0
    last_turn: int = 0
