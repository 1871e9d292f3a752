"""Detects a hanging worker: requests wait for it, and there is no sign of progress. Pure; `worker.py` observes.

A health check tells only that the event loop turns, or is too busy to answer. What is looked at instead: pieces of
answers, the worker's own count of steps (`worker/heartbeat.py`, or the engine's counters), and signs of work by its
processes. A long prefill step computes; a process that is stopped, or waits for a lock, does not.
"""

from __future__ import annotations

from dataclasses import dataclass

from qserve.worker.heartbeat import Progress

__all__ = ["INTERVAL_S", "Observation", "StallWatch"]

INTERVAL_S = 1.6
# With the first one less than ten seconds. In observations: whoever is stopped together with its worker (Ctrl-Z)
# must not blame it.
_NUM_QUIET = 5
# Computing, and not one step: far above any step of a model that somebody would serve.
_NUM_BUSY = 375


@dataclass(frozen=True)
class Observation:
    """One observation of a worker.

    Attributes:
        num_awaited: requests for which the gateway waits for bytes of the worker.
        num_pieces: chunks of answers received so far.
        progress: the worker's own count of steps; None if it reports none.
        is_working: whether its processes did anything since the last observation.
    """

    num_awaited: int
    num_pieces: int
    progress: Progress | None
    is_working: bool


class StallWatch:
    """`see` takes an observation every `INTERVAL_S` and returns the reason once the worker counts as hung."""

    def __init__(self) -> None:
        self._last: Observation | None = None
        self._num_quiet = 0
        self._num_busy = 0

    @property
    def is_suspicious(self) -> bool:
        """Whether nothing has arrived since the last observation."""
        return self._num_busy > 0

    def see(self, seen: Observation) -> str | None:
        """The reason to end the worker; None while it may be healthy."""
        last, self._last = self._last, seen
        if last is None or _gets_on(last, seen):
            self._num_quiet = self._num_busy = 0
            return None
        self._num_busy += 1
        self._num_quiet = 0 if seen.is_working else self._num_quiet + 1
        if self._num_quiet >= _NUM_QUIET:
            return f"hung ({seen.num_awaited} requests waited for it {_seconds(_NUM_QUIET)} and it did nothing)"
        if self._num_busy >= _NUM_BUSY and seen.progress is not None:
            return f"hung (it computed for {_seconds(_NUM_BUSY)} without completing a step)"
        return None


def _gets_on(last: Observation, seen: Observation) -> bool:
    """Nobody waits, or something came of it."""
    return (
        not seen.num_awaited
        or not last.num_awaited
        or seen.num_pieces != last.num_pieces
        or (None not in (seen.progress, last.progress) and seen.progress != last.progress)
    )


def _seconds(num_observations: int) -> str:
    return f"{num_observations * INTERVAL_S:.0f} s"
