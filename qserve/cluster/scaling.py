"""Computes how many replicas a load needs. Pure.

A replica is full when it has as many tokens to read and write as `max_num_seqs` usual requests have; what is usual is
a mean over minutes, so that a few long prompts count for what they are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from qserve.cluster.settings import Bounds

__all__ = ["Load", "Scaling"]

_UP_AT = 0.9
_UP_AFTER_S = 2.0
# What is started for a load fills so much of the replicas; what is ended leaves the others no fuller than that.
_FILL = 0.6
_USUAL_OVER_S = 60.0


@dataclass(frozen=True)
class Load:
    """What all replicas together have yet to do, at one moment: queued requests are counted, too."""

    num_tokens: int
    num_requests: int


class Scaling:
    """Feed it the load about every second."""

    def __init__(self, bounds: Bounds, places_per_replica: int) -> None:
        """`places_per_replica`: sequences that one runs at once."""
        self._bounds = bounds
        self._places = places_per_replica
        self._usual_tokens = 0.0
        self._seen_s: float | None = None
        self._high_since_s: float | None = None
        self._low_since_s: float | None = None

    def wanted(self, now_s: float, num_running: int, load: Load, *, are_ready: bool = True) -> int:
        """Replicas that are to run, of which `num_running` do or are about to.

        Unless all of those are ready, none is ended: a load that can't be served looks like none.
        """
        self._learn(now_s, load)
        fullness = self._fullness(load)
        lows = are_ready and fullness / max(1, num_running - 1) <= _FILL
        self._high_since_s = self._since(self._high_since_s, fullness / num_running >= _UP_AT, now_s)
        self._low_since_s = self._since(self._low_since_s, lows, now_s)
        if self._high_since_s is not None and now_s - self._high_since_s >= _UP_AFTER_S:
            return self._bounded(max(num_running, math.ceil(fullness / _FILL)))
        if self._low_since_s is not None and now_s - self._low_since_s >= self._bounds.down_after_s:
            self._low_since_s = None  # the next one goes after as long again
            return self._bounded(num_running - 1)
        return self._bounded(num_running)

    def _fullness(self, load: Load) -> float:
        """How many replicas the load would fill."""
        return load.num_tokens / (self._places * self._usual_tokens) if self._usual_tokens else 0.0

    def _learn(self, now_s: float, load: Load) -> None:
        elapsed_s = now_s - self._seen_s if self._seen_s is not None else 0.0
        self._seen_s = now_s
        if not load.num_requests:
            return
        mean = load.num_tokens / load.num_requests
        share = 1.0 - math.exp(-elapsed_s / _USUAL_OVER_S) if self._usual_tokens else 1.0
        self._usual_tokens += share * (mean - self._usual_tokens)

    def _since(self, since_s: float | None, holds: bool, now_s: float) -> float | None:
        if not holds:
            return None
        return now_s if since_s is None else since_s

    def _bounded(self, count: int) -> int:
        return max(self._bounds.fewest, min(self._bounds.most, count))
