"""Evicts connections when descriptors run out: those without a valid key first.

A connection is *trusted* once a request on it was accepted. All others (still sending a head, idle, refused, asking
for /health) cost a client nothing, so they are evicted first, the oldest before the others.
"""

from __future__ import annotations

import contextlib
import os
import resource
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

__all__ = ["Closable", "ConnectionLimits", "Connections", "limits_of_process", "raise_descriptor_limit"]

# Far above what one process serves; with a hard limit of a billion, tables sized by it would be huge.
_WANTED_DESCRIPTORS = 65_536
# Reserved for logs, SQLite and pipes of restarted workers.
_MAX_SPARE_DESCRIPTORS = 128
_MAX_UNTRUSTED_PER_PEER = 256


@dataclass(frozen=True)
class ConnectionLimits:
    """`num_open`: connections of clients at once. `num_untrusted_per_peer`: those of one address without a key."""

    num_open: int
    num_untrusted_per_peer: int


class Closable(Protocol):
    """One connection."""

    def close_now(self) -> None:
        """Close it; unsent data is dropped."""


class Connections:
    """All connections of one server, by state; `make_space` evicts the least important one."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self._limits = limits
        self._untrusted: OrderedDict[Closable, str] = OrderedDict()  # with the peer; the oldest first
        self._num_untrusted_of: dict[str, int] = {}
        self._idle: OrderedDict[Closable, None] = OrderedDict()  # trusted, between requests; longest idle first
        self._num_open = 0
        self.num_evicted = 0
        self.is_leaving = False
        """Answers tell clients to connect anew: to the process that takes over from this one."""

    @property
    def num_open(self) -> int:
        return self._num_open

    @property
    def is_full(self) -> bool:
        return self._num_open >= self._limits.num_open

    def add(self, connection: Closable, peer: str) -> None:
        """Adds a connection. If its peer has too many without a key, the oldest of these is evicted."""
        self._num_open += 1
        self._untrusted[connection] = peer
        self._num_untrusted_of[peer] = self._num_untrusted_of.get(peer, 0) + 1
        if self._num_untrusted_of[peer] > self._limits.num_untrusted_per_peer:
            self._evict(next(one for one, other in self._untrusted.items() if other == peer))

    def remove(self, connection: Closable) -> None:
        """Removes a closed connection."""
        self._num_open -= 1
        self._idle.pop(connection, None)
        self._forget_untrusted(connection)

    def trust(self, connection: Closable) -> None:
        """A request on it was let in."""
        self._forget_untrusted(connection)

    def distrust(self, connection: Closable, peer: str) -> None:
        """A wrong key was sent over it: it is untrusted again, as the newest."""
        if connection not in self._untrusted:
            self._idle.pop(connection, None)
            self._untrusted[connection] = peer
            self._num_untrusted_of[peer] = self._num_untrusted_of.get(peer, 0) + 1

    def is_trusted(self, connection: Closable) -> bool:
        return connection not in self._untrusted

    def answers(self, connection: Closable) -> None:
        """A request on it is being answered: it is not idle."""
        self._idle.pop(connection, None)

    def rests(self, connection: Closable) -> None:
        """Its answer is complete."""
        if connection not in self._untrusted:
            self._idle[connection] = None

    def make_space(self) -> bool:
        """Evict one connection for the next; False if all are trusted and being answered."""
        for group in (self._untrusted, self._idle):
            if group:
                self._evict(next(iter(group)))
                return True
        return False

    def _evict(self, connection: Closable) -> None:
        self.num_evicted += 1
        self._idle.pop(connection, None)
        self._forget_untrusted(connection)  # `remove` follows when it is closed; it must not be chosen twice
        connection.close_now()

    def _forget_untrusted(self, connection: Closable) -> None:
        peer = self._untrusted.pop(connection, None)
        if peer is None:
            return
        self._num_untrusted_of[peer] -= 1
        if not self._num_untrusted_of[peer]:
            del self._num_untrusted_of[peer]


def raise_descriptor_limit() -> None:
    """Raise RLIMIT_NOFILE of this process and its children to the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _WANTED_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _WANTED_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # a container's policy may forbid it; the limits follow
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def limits_of_process() -> ConnectionLimits:
    """Limits by this process's descriptors. A relayed request needs two: the client's and the worker's."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    num_descriptors = _WANTED_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft
    return limits_for(num_descriptors, _num_descriptors_in_use())


def limits_for(num_descriptors: int, num_in_use: int) -> ConnectionLimits:
    """Pure: the limits where `num_in_use` of `num_descriptors` are taken before the first client comes."""
    spare = min(_MAX_SPARE_DESCRIPTORS, num_descriptors // 8)
    num_open = max(2, (num_descriptors - num_in_use - spare) // 2)
    return ConnectionLimits(num_open, max(1, min(_MAX_UNTRUSTED_PER_PEER, num_open // 2)))


def _num_descriptors_in_use() -> int:
    try:
        return sum(1 for _ in Path("/proc/self/fd").iterdir())
    except OSError:
        return len(os.listdir("/dev/fd"))  # noqa: PTH208 - a device folder, on systems without /proc
