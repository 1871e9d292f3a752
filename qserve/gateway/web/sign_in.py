"""The key, asked for once: the form's answer, and a brake on guessing."""

from __future__ import annotations

import ipaddress
import math
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import parse_qs

__all__ = ["MAX_FORM_BYTES", "Guesses", "key_of_form"]

MAX_FORM_BYTES = 16 * 1024
_FREE_GUESSES = 3
_LONGEST_WAIT_S = 60.0
_FORGIVEN_AFTER_S = 3600.0
_MAX_ADDRESSES = 10_000


@dataclass
class _Wrong:
    count: int = 0
    last_s: float = 0.0
    open_s: float = 0.0


class Guesses:
    """Wrong keys by address: after the third each further one is taken only 1, 2, 4, … 60 seconds later."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._wrong: OrderedDict[str, _Wrong] = OrderedDict()

    def wait_s(self, address: str) -> int:
        """Whole seconds until a key from `address` is looked at again; 0: now."""
        wrong = self._wrong.get(_network(address))
        return 0 if wrong is None else max(0, math.ceil(wrong.open_s - self._clock()))

    def count(self, address: str) -> None:
        """One wrong key."""
        name, now_s = _network(address), self._clock()
        wrong = self._wrong.pop(name, None) or _Wrong()
        if now_s - wrong.last_s > _FORGIVEN_AFTER_S:
            wrong = _Wrong()
        wrong.count, wrong.last_s = wrong.count + 1, now_s
        if wrong.count >= _FREE_GUESSES:
            wrong.open_s = now_s + min(_LONGEST_WAIT_S, 2.0 ** min(wrong.count - _FREE_GUESSES, 10))
        self._wrong[name] = wrong
        while len(self._wrong) > _MAX_ADDRESSES:
            self._wrong.popitem(last=False)

    def forget(self, address: str) -> None:
        """The right key."""
        self._wrong.pop(_network(address), None)


def _network(address: str) -> str:
    """Whoever has one address of IPv6 has 2⁶⁴ of them."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if parsed.version == 4:
        return address
    return str(ipaddress.ip_network((parsed, 64), strict=False))


def key_of_form(body: bytes) -> bytes:
    """The key that was typed; b"" if the form has none."""
    fields = parse_qs(body.decode("utf-8", "replace"))
    return fields.get("key", [""])[0].strip().encode("utf-8", "replace")
