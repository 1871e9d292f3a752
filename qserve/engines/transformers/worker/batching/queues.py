"""Between the event loop and a thread that generates: inboxes one way, outboxes the other."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from qserve.engines.transformers.worker.batching.batcher import Deliveries, Sequence
from qserve.model.failures import WorkerStopping

__all__ = ["Arrivals", "Inbox", "Outboxes", "PolledInbox"]


class PolledInbox:
    """What is asked of the library's thread, which sleeps and is held by the library's own means: it looks in here
    before each step.
    """

    def __init__(self) -> None:
        self.submitted: deque[Sequence] = deque()
        self.cancelled: deque[str] = deque()
        self.is_closed = False


@dataclass(frozen=True)
class Arrivals:
    """What came in since the last step: sequences to run, and the ids of those that nobody waits for any more."""

    submitted: list[Sequence]
    cancelled: set[str]


class Inbox:
    """Between one thread that generates, which calls `wait`, and any others."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._submitted: list[Sequence] = []
        self._cancelled: set[str] = set()
        self._is_closed = self._is_paused = False
        self._num_pauses = 0
        self._one_at_a_time = threading.Lock()

    def __len__(self) -> int:
        """Sequences that were not taken in yet."""
        with self._changed:
            return len(self._submitted)

    def close(self) -> None:
        """`wait` ends, and so does whoever waits for a pause."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def submit(self, sequence: Sequence) -> bool:
        """Whether it was taken: a closed one takes none."""
        with self._changed:
            if not self._is_closed:
                self._submitted.append(sequence)
                self._changed.notify_all()
            return not self._is_closed

    def cancel(self, request_id: str) -> None:
        """Nobody waits for it."""
        with self._changed:
            self._cancelled.add(request_id)
            self._changed.notify_all()

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Hold the generating thread between two steps. Raises WorkerStopping where it has ended."""
        with self._one_at_a_time:
            with self._changed:
                self._num_pauses += 1
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._is_paused or self._is_closed)
            try:
                if self._is_closed:
                    raise WorkerStopping()
                yield
            finally:
                with self._changed:
                    self._num_pauses -= 1
                    self._is_paused = False
                    self._changed.notify_all()

    def wait(self, is_busy: bool) -> Arrivals | None:
        """Of the generating thread: what was asked, at once where it `is_busy` with earlier things; None at the end.

        Sleeps while there is nothing to do, and while somebody holds it.
        """
        is_turn_of_others = True
        with self._changed:
            while not self._is_closed:
                has_work = bool(is_busy or self._submitted or self._cancelled)
                if self._num_pauses and (is_turn_of_others or not has_work):
                    self._is_paused = True
                    self._changed.notify_all()
                    self._changed.wait_for(lambda: not self._is_paused or self._is_closed)
                    is_turn_of_others = False  # who scores prompt after prompt lets a step in between
                elif has_work:
                    arrivals = Arrivals(self._submitted, self._cancelled)
                    self._submitted, self._cancelled = [], set()
                    return arrivals
                else:
                    self._changed.wait()
            return None


class Outboxes:
    """Hands over what a step has yielded: one wake-up of the loop for all of its sequences."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def deliver(self, deliveries: Deliveries) -> None:
        """Thread-safe. What is handed over is not drawn again."""
        self._loop.call_soon_threadsafe(_fill, deliveries)
        for sequence, _ in deliveries:
            sequence.undelivered = None


def _fill(deliveries: Deliveries) -> None:
    for sequence, item in deliveries:
        sequence.outbox.put_nowait(item)
