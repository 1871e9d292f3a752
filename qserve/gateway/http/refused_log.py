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
class _LogLine:
    at_s: float
    num_suppressed: int = 0


class RefusedLog:
    """At most one line a minute per peer and kind, with the count of suppressed ones."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lines: OrderedDict[tuple[str, str], _LogLine] = OrderedDict()

    def refused(self, peer: str, why: str) -> None:
        """`why`: words of ours, never the client's."""
        now_s, key = self._clock(), (peer, why)
        last = self._lines.pop(key, None)
        if last is not None and now_s - last.at_s < _INTERVAL_S:
            last.num_suppressed += 1
            self._lines[key] = last
            return
        num_suppressed = last.num_suppressed if last is not None else 0
        more = f" ({num_suppressed} more since the last such line)" if num_suppressed else ""
        _log.warning("refused a connection of %s: %s%s", peer or "a client", why, more)
        self._lines[key] = _LogLine(now_s)
        while len(self._lines) > _MAX_PEERS:
            self._lines.popitem(last=False)
