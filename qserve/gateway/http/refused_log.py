"""Rate-limits log lines about refused requests: a client must not be able to fill the disk."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["RefusedLog"]

_INTERVAL_S = 60.0
_MAX_PEERS = 1024
_log = logging.getLogger("qserve.gateway")


@dataclass
class _Told:
    at_s: float
    num_silent: int = 0


class RefusedLog:
    """At most one line a minute per peer and kind, with the count of suppressed ones."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._told: OrderedDict[tuple[str, str], _Told] = OrderedDict()

    def refused(self, peer: str, why: str) -> None:
        """`why`: words of ours, never the client's."""
        now_s, key = self._clock(), (peer, why)
        told = self._told.pop(key, None)
        if told is not None and now_s - told.at_s < _INTERVAL_S:
            told.num_silent += 1
            self._told[key] = told
            return
        num_silent = told.num_silent if told is not None else 0
        more = f" ({num_silent} more since the last such line)" if num_silent else ""
        _log.warning("refused a connection of %s: %s%s", peer or "a client", why, more)
        self._told[key] = _Told(now_s)
        while len(self._told) > _MAX_PEERS:
            self._told.popitem(last=False)
