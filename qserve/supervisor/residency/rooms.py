"""Room that models leave for something else on the machine, a training run: for as long as it is renewed."""

from __future__ import annotations

import secrets
from collections.abc import Collection
from dataclasses import dataclass, replace

from qserve.planner.residency.footprint import RAM, Budget, Footprint

__all__ = ["LEASE_S", "Room", "Rooms"]

LEASE_S = 60.0
"""A room that nobody has renewed for so long is the models' again: who asked for it may have died."""


@dataclass(frozen=True)
class Room:
    """Bytes of the RAM and of each card.

    Attributes:
        ram_bytes, card_bytes: both None: all that models which may leave have.
        refuses: requests for models without room are refused meanwhile; else they wait.
        until_s: the lease ends then.
    """

    ram_bytes: int | None
    card_bytes: int | None
    refuses: bool
    until_s: float

    def left_of(self, pool: str, size: int, pinned_bytes: int) -> int:
        """What models may have of a pool."""
        if self.ram_bytes is None and self.card_bytes is None:
            return min(size, pinned_bytes)
        return max(0, size - ((self.ram_bytes if pool == RAM else self.card_bytes) or 0))


class Rooms:
    """Those that are given, by their ids."""

    def __init__(self) -> None:
        self._rooms: dict[str, Room] = {}

    def __bool__(self) -> bool:
        return bool(self._rooms)

    @property
    def refuses(self) -> bool:
        """Whether requests for models without room are refused now."""
        return any(one.refuses for one in self._rooms.values())

    def give(self, room_id: str | None, room: Room, now_s: float) -> str:
        """A new one, or the one of this id with other bytes; its id."""
        room_id = room_id or secrets.token_hex(8)
        self._rooms[room_id] = replace(room, until_s=now_s + LEASE_S)
        return room_id

    def knows(self, room_id: str) -> bool:
        """Whether it is given, and its lease has not ended."""
        return room_id in self._rooms

    def take_back(self, room_id: str) -> bool:
        """It is the models' again; False where it was already."""
        return self._rooms.pop(room_id, None) is not None

    def expire(self, now_s: float) -> list[str]:
        """Take those back whose leases have ended; their ids."""
        over = [room_id for room_id, one in self._rooms.items() if one.until_s <= now_s]
        for room_id in over:
            del self._rooms[room_id]
        return over

    def left_of(self, budget: Budget, pinned: Collection[Footprint]) -> Budget:
        """What is left for models."""
        pools = dict(budget.pools)
        for one in self._rooms.values():
            for pool in pools:
                held = sum(model.rest.get(pool, 0) + model.starting.get(pool, 0) for model in pinned)
                pools[pool] = one.left_of(pool, pools[pool], held)
        return Budget(pools)
