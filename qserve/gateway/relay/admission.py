"""Admission to a worker: its slots for sequences, and a bounded first-come, first-served queue."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from qserve.wire.errors import ApiError

__all__ = ["Admission", "Moved"]

# Assumed duration of a request before the first has finished.
_FIRST_GUESS_S = 5.0
_SMOOTHING = 0.2
_MAX_RETRY_AFTER_S = 60


class Moved(Exception):
    """The waiting request has got a slot at another worker, `to`."""

    def __init__(self, to: Any) -> None:
        super().__init__()
        self.to = to


@dataclass(eq=False, slots=True)
class _Ticket:
    num_sequences: int
    granted: asyncio.Future[None]
    is_background: bool = False


class Admission:
    """The queue in front of one worker.

    A request takes one slot per sequence, or all of them if it has more sequences than there are slots, so that an
    oversized one still runs, alone. The longest waiting goes first even if a smaller one behind it would fit, so
    that none starves. `num_slots` may change while requests run.
    """

    def __init__(self, num_slots: int, max_waiting: int) -> None:
        self.num_slots = num_slots
        self.count_waiting: Callable[[], int] = lambda: self.num_waiting
        """Returns the number that `max_waiting` bounds: waiting in this queue, or in those of several workers."""
        self._max_waiting = max_waiting
        self._queue: deque[_Ticket] = deque()
        self._seconds_per_request = _FIRST_GUESS_S
        self.num_running_sequences = 0
        self.num_running_requests = 0

    @property
    def num_waiting(self) -> int:
        """Requests in the queue."""
        return len(self._queue)

    @asynccontextmanager
    async def slots(self, num_sequences: int, *, background: bool = False) -> AsyncIterator[None]:
        """Waits for the slots and holds them, as `enter` and `leave` say."""
        num_slots, held_s = await self.enter(num_sequences, background=background), None
        granted_s = time.perf_counter()
        try:
            yield
            held_s = time.perf_counter() - granted_s
        finally:
            self.leave(num_slots, held_s)

    async def enter(self, num_sequences: int, *, background: bool = False) -> int:
        """Waits for slots; returns their number, to be passed to `leave`. 429 if the queue is full.

        Cancelling the wait is safe. A `background` request waits behind all others, and leaves one slot free for the
        next of them.
        """
        num_slots = min(num_sequences, self._slots_for(background))
        await self._enter(num_slots, background)
        return num_slots

    def leave(self, num_slots: int, held_s: float | None = None) -> None:
        """Gives slots back. `held_s`: duration of a completed request, for the estimate of waits; None of others."""
        if held_s is not None:
            self._seconds_per_request += _SMOOTHING * (held_s - self._seconds_per_request)
        self._leave(num_slots)

    def turn_away(self, error: ApiError) -> None:
        """Fails all waiting requests with `error`; running ones continue."""
        while self._queue:
            ticket = self._queue.popleft()
            if not ticket.granted.done():
                ticket.granted.set_exception(replace(error))

    @property
    def num_free_in_background(self) -> int:
        """Slots that a background request would get at once; 0 while any request waits."""
        return 0 if self._queue else max(0, self._slots_for(background=True) - self.num_running_sequences)

    @property
    def has_free_slots(self) -> bool:
        """Whether a new request would not wait."""
        return not self._queue and self.num_running_sequences < self.num_slots

    def move_first(self, to: Any, there: Admission, num_promised: int) -> int:
        """Moves the longest waiting request `to` another worker if it runs `there` at once; its wait ends with `Moved`.

        Returns the number of slots it takes there, 0 if none is moved. `num_promised`: slots of requests moved before.
        """
        ticket = self._queue[0] if self._queue else None
        num_taken = there.num_running_sequences + num_promised
        if ticket is None or num_taken + ticket.num_sequences > there._slots_for(ticket.is_background):
            return 0
        self._queue.popleft()
        if not ticket.granted.done():
            ticket.granted.set_exception(Moved(to))
        self._admit()
        return ticket.num_sequences

    def check_queue(self) -> None:
        """429 if the queue is full."""
        if self.count_waiting() < self._max_waiting:
            return
        message = f"{self.count_waiting()} requests wait already; try again later or raise --max-queue"
        raise ApiError(429, message, "queue_full", retry_after_s=self.retry_after_s())

    def retry_after_s(self) -> int:
        """Estimated seconds until the queue is empty, by the duration of recent requests."""
        ahead = sum(ticket.num_sequences for ticket in self._queue) + self.num_running_sequences
        estimate_s = ahead / self.num_slots * self._seconds_per_request
        return max(1, min(_MAX_RETRY_AFTER_S, math.ceil(estimate_s)))

    async def _enter(self, num_sequences: int, background: bool) -> None:
        ahead = self._queue and (background or not self._queue[0].is_background)
        if not ahead and self.num_running_sequences + num_sequences <= self._slots_for(background):
            self._take(num_sequences)
            return
        self.check_queue()
        ticket = _Ticket(num_sequences, asyncio.get_running_loop().create_future(), background)
        self._queue.insert(self._turn_of(ticket), ticket)
        try:
            await ticket.granted
        except asyncio.CancelledError:
            self._withdraw(ticket)
            raise

    def _slots_for(self, background: bool) -> int:
        return max(1, self.num_slots - 1) if background else self.num_slots

    def _turn_of(self, ticket: _Ticket) -> int:
        """Its place in the queue: at the end, or before the first that waits in the background."""
        if ticket.is_background:
            return len(self._queue)
        return next((turn for turn, other in enumerate(self._queue) if other.is_background), len(self._queue))

    def _withdraw(self, ticket: _Ticket) -> None:
        if ticket.granted.done() and not ticket.granted.cancelled() and ticket.granted.exception() is None:
            self._leave(ticket.num_sequences)  # granted in the same tick in which its client disconnected
        elif ticket in self._queue:
            self._queue.remove(ticket)
            self._admit()  # smaller requests behind it may fit now

    def _take(self, num_sequences: int) -> None:
        self.num_running_sequences += num_sequences
        self.num_running_requests += 1

    def _leave(self, num_sequences: int) -> None:
        self.num_running_sequences -= num_sequences
        self.num_running_requests -= 1
        self._admit()

    def _admit(self) -> None:
        while self._queue:
            ticket = self._queue[0]
            if self.num_running_sequences + ticket.num_sequences > self._slots_for(ticket.is_background):
                return
            self._queue.popleft()
            if not ticket.granted.done():
                self._take(ticket.num_sequences)
                ticket.granted.set_result(None)
