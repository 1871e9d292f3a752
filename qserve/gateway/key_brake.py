"""A brake on guessing keys that never locks an address out: behind a load balancer all clients have the same one.

An address that showed many wrong keys is *braked*: a key that comes from it over a connection without trust is looked
at only after a pause, the right one like the wrong ones, so that nothing is learnt by not waiting. Connections on
which a key was accepted go on without a pause, and so the other clients of the address hardly notice.
"""

from __future__ import annotations

import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache

__all__ = ["KeyBrake", "network_of"]

# Wrong keys that an address may show at once, and how fast they are forgiven: a client with an old key in its
# configuration retries about that often.
_NUM_FREE = 10.0
_FORGIVEN_PER_S = 0.2
_PAUSE_S = 1.0
_MAX_ADDRESSES = 10_000


@dataclass
class _Wrong:
    count: float
    at_s: float


class KeyBrake:
    """Wrong keys by address, forgiven with time."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._wrong: OrderedDict[str, _Wrong] = OrderedDict()

    def pause_s(self, address: str, *, is_trusted: bool) -> float:
        """Seconds to wait before a key from `address` is looked at; `is_trusted`: its connection had a right one."""
        wrong = self._wrong.get(network_of(address))
        return 0.0 if is_trusted or wrong is None or self._left(wrong) < _NUM_FREE else _PAUSE_S

    def count_wrong(self, address: str) -> None:
        """A wrong key came from `address`."""
        name = network_of(address)
        wrong = self._wrong.pop(name, None)
        count = 0.0 if wrong is None else self._left(wrong)
        self._wrong[name] = _Wrong(min(count + 1, 2 * _NUM_FREE), self._clock())
        while len(self._wrong) > _MAX_ADDRESSES:
            self._wrong.popitem(last=False)

    def counts(self) -> list[tuple[str, float, float]]:
        """Who showed wrong keys, how many are not forgiven, and when they were counted, for `add` elsewhere."""
        return [(name, wrong.count, wrong.at_s) for name, wrong in self._wrong.items()]

    def add(self, counts: Iterable[tuple[str, float, float]]) -> None:
        """What another process of this machine has counted."""
        self._wrong.update({name: _Wrong(count, at_s) for name, count, at_s in counts})

    def _left(self, wrong: _Wrong) -> float:
        return max(0.0, wrong.count - (self._clock() - wrong.at_s) * _FORGIVEN_PER_S)


@lru_cache(maxsize=4096)  # asked twice a request, and most requests are of few addresses
def network_of(address: str) -> str:
    """Whoever has one address of IPv6 has 2⁶⁴ of them."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if parsed.version == 4:
        return address
    return str(ipaddress.ip_network((parsed, 64), strict=False))
