"""Decides what is to be done about memory that runs out: pure, from one look at it after the other.

Each step begins below a threshold of `Reserve`, in any of the pools that we share. Two things move it by a step:

- Processes that wait for memory a quarter of their time (`STALLED_SHARE`) count as one step more. An engine reads all
  of its weights for every token, so it has stopped by then; systemd-oomd kills at 60 % for 30 s.
- Free swap takes the last step away: the kernel has where to put pages, and nothing is about to be ended. Not where a
  GPU shares the RAM, whose memory can't be swapped out, nor where processes stall.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from qserve.detect.free_memory import FreeMemory, MemoryPool
from qserve.planner.memory.reserve import Reserve
from qserve.units import GIB, format_bytes

__all__ = ["END_AGAIN_S", "STALLED_SHARE", "Held", "MemoryLevel", "MemoryLevels", "whom_to_end"]

STALLED_SHARE = 0.25
_CALM_SHARE = 0.05
# The kernel's average is over 10 s, and a process of 100 GiB is gone after a second or two.
_CALM_S = 3.0
END_AGAIN_S = 5.0
"""Another worker is ended so long after one: its memory comes back by and by."""
# GB10: 21 GiB within 1.5 s (dgx-spark-playbooks#116). Elsewhere as cores fill RAM: earlyoom reckons with 6 GB/s.
_FASTEST_SHARED, _FASTEST = 14 * GIB, 6 * GIB
_LONGEST_PAUSE_S, _SHORTEST_PAUSE_S = 1.0, 0.1
# A worker that holds this much more than planned has outgrown its plan: twice what plans are off by.
_GROWN_SHARE = 0.1


class MemoryLevel(enum.IntEnum):
    """What is done; each with all before it."""

    CLEAR = 0
    REFUSE = 1
    DRAIN = 2
    END = 3


@dataclass(frozen=True)
class Held:
    """What one worker holds of this memory, and what its plan said; bytes."""

    name: str
    held_bytes: int
    planned_bytes: int

    @property
    def grown_bytes(self) -> int:
        """Beyond its plan; negative below it."""
        return self.held_bytes - self.planned_bytes

    @property
    def has_outgrown(self) -> bool:
        """Whether a restart would give memory back that comes of no plan."""
        return self.grown_bytes > _GROWN_SHARE * self.planned_bytes

    def __str__(self) -> str:
        return f"{self.name} holds {format_bytes(self.held_bytes)} (planned {format_bytes(self.planned_bytes)})"


class MemoryLevels:
    """`see` takes one look after the other. Up at once; down to CLEAR alone, when memory was there for a while."""

    def __init__(self, *, shares_gpu: bool, asked_bytes: int | None = None) -> None:
        """`shares_gpu`: a GPU has its memory in the machine's RAM. `asked_bytes`: --min-free-ram."""
        self.level = MemoryLevel.CLEAR
        self._shares_gpu = shares_gpu
        self._asked_bytes = asked_bytes
        self._calm_since_s: float | None = None

    def see(self, now: FreeMemory, now_s: float) -> MemoryLevel:
        """The level after this look at `now_s`, on any clock that never goes back."""
        seen = self._seen(now)
        if seen >= self.level and seen is not MemoryLevel.CLEAR:
            self.level, self._calm_since_s = seen, None
        elif self.level is not MemoryLevel.CLEAR and not self._has_recovered(now):
            self.level, self._calm_since_s = max(seen, MemoryLevel.REFUSE), None
        elif self._calm_since_s is None:
            self._calm_since_s = now_s
        elif now_s - self._calm_since_s >= _CALM_S:
            self.level = MemoryLevel.CLEAR
        return self.level

    def reserve(self, pool: MemoryPool, now: FreeMemory) -> Reserve:
        """What of `pool` stays free. A GPU's memory is in the machine's, and counts in no cgroup."""
        shares_gpu = self._shares_gpu and pool is now.machine
        return Reserve.of(pool.total_bytes, shares_gpu=shares_gpu, asked_bytes=self._asked_bytes)

    def scarcest(self, now: FreeMemory) -> MemoryPool:
        """The pool that is nearest to its threshold, or furthest below."""
        return min(now.pools, key=lambda pool: pool.available_bytes - self.reserve(pool, now).refuse_bytes)

    def pause_s(self, now: FreeMemory) -> float:
        """Until the next look: as long as memory above the first threshold lasts at the fastest growth; 0.1 to 1 s."""
        scarcest = self.scarcest(now)
        above = scarcest.available_bytes - self.reserve(scarcest, now).refuse_bytes
        lasts_s = above / (_FASTEST_SHARED if self._shares_gpu else _FASTEST)
        return min(_LONGEST_PAUSE_S, max(_SHORTEST_PAUSE_S, lasts_s))

    def until(self, now: FreeMemory) -> str:
        """What has to come before new requests are taken, for people."""
        pool = self.scarcest(now)
        recover_bytes = self.reserve(pool, now).recover_bytes
        if pool.available_bytes >= recover_bytes:
            return "until they wait no more"
        return f"until {format_bytes(recover_bytes)} are free"

    def why(self, now: FreeMemory) -> str:
        """The figures, for people."""
        pool = self.scarcest(now)
        whose = "the machine" if pool is now.machine else f"the {pool.name}"
        free, total = format_bytes(pool.available_bytes), format_bytes(pool.total_bytes)
        if now.stalled_share < STALLED_SHARE:
            return f"{whose} has {free} of {total} free"
        return f"{whose} has {free} of {total} free, and processes wait for memory {now.stalled_share:.0%} of the time"

    def _seen(self, now: FreeMemory) -> MemoryLevel:
        return max(self._level_of(pool, now) for pool in now.pools)

    def _level_of(self, pool: MemoryPool, now: FreeMemory) -> MemoryLevel:
        reserve, free = self.reserve(pool, now), pool.available_bytes
        level = sum(free < threshold for threshold in (reserve.refuse_bytes, reserve.drain_bytes, reserve.end_bytes))
        if now.stalled_share >= STALLED_SHARE:
            level = min(level + 1, MemoryLevel.END)
        elif pool.swap_free_bytes > reserve.refuse_bytes and not self._shares_gpu:
            level = min(level, MemoryLevel.DRAIN)
        return MemoryLevel(level)

    def _has_recovered(self, now: FreeMemory) -> bool:
        has_room = all(pool.available_bytes >= self.reserve(pool, now).recover_bytes for pool in now.pools)
        return has_room and now.stalled_share <= _CALM_SHARE


def whom_to_end(workers: list[Held]) -> Held:
    """The one that outgrew its plan by most; where none did, the largest. Raises ValueError without any."""
    outgrown = [one for one in workers if one.has_outgrown]
    if outgrown:
        return max(outgrown, key=lambda one: one.grown_bytes)
    return max(workers, key=lambda one: one.held_bytes)
