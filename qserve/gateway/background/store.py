"""Background responses within bytes and time, each for the key that made it. Pure.

Whoever needs room takes it from responses that have ended, the oldest first: his own, then those of whoever holds more
than he. Nobody may hold more than is free then, half of all when alone (as `gateway/bodies.py`).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from qserve.gateway.background.growing import GrowingResponse
from qserve.units import format_bytes
from qserve.wire.errors import ApiError

__all__ = ["Kept", "ResponseStore"]

_RUNNING_BYTES = 32 * 1024
"""What asking for one takes beside its body: a task, and an exchange with its buffers."""
_RETRY_AFTER_S = 10


@dataclass(eq=False)
class Kept:
    """One response.

    Attributes:
        owner: who may see it (`auth.owner_of`).
        share: for whom its bytes count (`auth.share_of`).
        running_bytes: held until it ends, beside the response.
        num_bytes: as last counted.
        ended_s: on the store's clock; None before.
    """

    response: GrowingResponse
    owner: str
    share: str
    running_bytes: int
    num_bytes: int = 0
    ended_s: float | None = None


class ResponseStore:
    """Call `expire` now and then."""

    def __init__(self, max_bytes: int, keep_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """`keep_s`: how long a response is kept after its end."""
        self._max_bytes = max_bytes
        self._keep_s = keep_s
        self._clock = clock
        self._kept: dict[str, Kept] = {}
        self._held: Counter[str] = Counter()
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, response: GrowingResponse, owner: str, share: str, body_bytes: int) -> Kept:
        """Keep a response that is about to be asked for. Raises ApiError 429 if there is no room."""
        kept = Kept(response, owner, share, _RUNNING_BYTES + body_bytes)
        if not self.has_room(kept, kept.running_bytes + response.num_bytes):
            raise self.full()
        self._kept[response.id] = kept
        self.count(kept)
        return kept

    def full(self) -> ApiError:
        """The 429 for a response that finds no room."""
        message = (
            f"background responses hold {format_bytes(self.num_bytes)} of the {format_bytes(self._max_bytes)} that "
            "they may (qserve up --keep-responses-mib); try again later, or delete some"
        )
        return ApiError(429, message, "background_full", retry_after_s=_RETRY_AFTER_S)

    def find(self, response_id: str, owner: str) -> Kept:
        """Raises ApiError 404 if this owner has no such response."""
        kept = self._kept.get(response_id)
        if kept is None or kept.owner != owner:
            message = (
                f"this key has no background response {response_id[:100]!r}: only these are kept, in memory, "
                f"for {self._keep_s:g} s after their end (qserve up --keep-responses-minutes)"
            )
            raise ApiError(404, message, "response_not_found", "response_id")
        return kept

    def has_room(self, kept: Kept, num_bytes: int) -> bool:
        """Whether `kept` may hold so many bytes more; others that have ended are removed for it."""
        while not self._fits(kept.share, num_bytes):
            victim = self._victim(kept, num_bytes)
            if victim is None:
                return False
            self.remove(victim)
        return True

    def count(self, kept: Kept) -> None:
        """The response has grown, or has ended."""
        if self._kept.get(kept.response.id) is not kept:
            return
        if kept.response.has_ended and kept.ended_s is None:
            kept.ended_s, kept.running_bytes = self._clock(), 0
        self._charge(kept, kept.response.num_bytes + kept.running_bytes)

    def remove(self, kept: Kept) -> None:
        """Forget a response."""
        self._kept.pop(kept.response.id, None)
        self._charge(kept, 0)

    def expire(self) -> None:
        """Forget what ended too long ago."""
        now_s = self._clock()
        for kept in [one for one in self._kept.values() if one.ended_s is not None]:
            if kept.ended_s is not None and now_s - kept.ended_s >= self._keep_s:
                self.remove(kept)

    def _charge(self, kept: Kept, num_bytes: int) -> None:
        more, kept.num_bytes = num_bytes - kept.num_bytes, num_bytes
        self.num_bytes += more
        self._held[kept.share] += more
        if not self._held[kept.share]:
            del self._held[kept.share]

    def _fits(self, share: str, num_bytes: int) -> bool:
        return self._held[share] + num_bytes <= self._max_bytes - self.num_bytes

    def _victim(self, wanting: Kept, num_bytes: int) -> Kept | None:
        """The one to remove so that `wanting` gets room; None: nobody has to give any."""
        ended = [one for one in self._kept.values() if one.ended_s is not None and one is not wanting]
        own = [one for one in ended if one.share == wanting.share]
        wants = self._held[wanting.share] + num_bytes
        of_larger = [one for one in ended if self._held[one.share] > wants]
        return min(own or of_larger, key=lambda one: one.ended_s or 0.0, default=None)
