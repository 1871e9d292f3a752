"""Throttles guessing of keys without locking addresses out: behind a load balancer all clients share one.

An address that sent many wrong keys is *throttled*: a key from it over an untrusted connection is checked only after
a pause, right or wrong, so that not waiting for the answer reveals nothing. Connections on which a key was accepted
have no pause, so that other clients behind the address hardly notice.
"""

from __future__ import annotations

import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache

__all__ = ["KeyThrottle", "network_of"]

# Wrong keys per address without a pause, and how fast they expire: about the rate at which a client with an outdated
# key retries.
_NUM_FREE = 10.0
_FORGIVEN_PER_S = 0.2
_PAUSE_S = 1.0
_MAX_ADDRESSES = 10_000


@dataclass
class _Wrong:
    count: float
    at_s: float


class KeyThrottle:
    """Counts wrong keys by address; counts expire with time."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._wrong: OrderedDict[str, _Wrong] = OrderedDict()

    def pause_s(self, address: str, *, is_trusted: bool) -> float:
        """Seconds to wait before a key from `address` is checked; `is_trusted`: its connection has sent a valid key."""
        if is_trusted or not self._wrong:
            return 0.0
        wrong = self._wrong.get(network_of(address))
        return 0.0 if wrong is None or self._left(wrong) < _NUM_FREE else _PAUSE_S

    def count_wrong(self, address: str) -> None:
        """Count a wrong key from `address`."""
        name = network_of(address)
        wrong = self._wrong.pop(name, None)
        count = 0.0 if wrong is None else self._left(wrong)
        self._wrong[name] = _Wrong(min(count + 1, 2 * _NUM_FREE), self._clock())
        while len(self._wrong) > _MAX_ADDRESSES:
            self._wrong.popitem(last=False)

    def counts(self) -> list[tuple[str, float, float]]:
        """(address, count, time) of all wrong keys that have not expired, for `add` in another process."""
        return [(name, wrong.count, wrong.at_s) for name, wrong in self._wrong.items()]

    def add(self, counts: Iterable[tuple[str, float, float]]) -> None:
        """Adopt the counts of another process of this machine."""
        self._wrong.update({name: _Wrong(count, at_s) for name, count, at_s in counts})

    def _left(self, wrong: _Wrong) -> float:
        return max(0.0, wrong.count - (self._clock() - wrong.at_s) * _FORGIVEN_PER_S)


@lru_cache(maxsize=4096)  # called twice per request, for few addresses
def network_of(address: str) -> str:
    """The address, or the /64 of an IPv6 address: a client has all of its 2⁶⁴ addresses."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if parsed.version == 4:
        return address
    return str(ipaddress.ip_network((parsed, 64), strict=False))
