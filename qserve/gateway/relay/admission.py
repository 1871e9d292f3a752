"""Admission to a worker: its slots for sequences, and a bounded queue in which clients take turns."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from qserve.gateway.relay.token_shares import Share, TokenShares
from qserve.wire.errors import ApiError

__all__ = ["Admission", "Places", "Requester", "Requeued"]

# Assumed duration of a request before the first has finished.
_FIRST_GUESS_S = 5.0
_SMOOTHING = 0.2
_MAX_RETRY_AFTER_S = 60
# Of one client at a worker that shares its places: while one ends, the next has begun.
_MOST_WIDE = 2


class Requeued(Exception):
    """The waiting request has got a slot at another worker, or has to wait for this one to be loaded, `to`."""

    def __init__(self, to: Any) -> None:
        super().__init__()
        self.to = to


class Requester(NamedTuple):
    """Whose requests ask for slots.

    Attributes:
        client: whom the request counts for (`auth.share_of`).
        is_background: all others go first, and one slot stays free for them.
        is_urgent: requests of other clients wait for it.
        leaves_one: one of many sequences: it leaves the last slot to requests that have none.
    """

    client: str = ""
    is_background: bool = False
    leaves_one: bool = False
    is_urgent: bool = False

    @property
    def share(self) -> Share:
        """A client's background work is not held against its other requests."""
        return self.is_background, self.client


class Places(NamedTuple):
    """Slots that a requester holds; `is_last`: the one that others of its time had to leave.

    `num_tokens`: of its prompt and its answers, as estimated.
    """

    requester: Requester
    num_slots: int
    num_tokens: int
    is_last: bool = False


@dataclass(eq=False, slots=True)
class _Ticket:
    requester: Requester
    num_sequences: int
    num_tokens: int
    granted: asyncio.Future[Places] = field(init=False)  # while it is in a queue


class Admission:
    """The queue in front of one worker.

    A request takes one slot per sequence, or all of them if it has more sequences than there are slots. Next is the
    client whose running requests have fewest tokens (`TokenShares`); of its requests, the one that has waited longest,
    even if a smaller one behind it would fit, so that none starves. `num_slots` may change while requests run.

    A worker that `shares_places` runs the sequences of all its requests in turns: there every client has a request in
    at once, and slots bound how much one client has there.
    """

    def __init__(self, num_slots: int, max_waiting: int, *, shares_places: bool = False) -> None:
        self.num_slots = num_slots
        self._max_waiting = max_waiting
        self._shares_places = shares_places
        self._queue: list[_Ticket] = []
        self._seconds_per_request: float | None = None  # before the first has finished
        self.num_running_sequences = 0
        self.num_running_requests = 0
        self._held: Counter[Share] = Counter()
        self._wide: Counter[Share] = Counter()
        self._tokens = TokenShares()
        self._num_last = self._num_chats = 0

    @property
    def num_waiting(self) -> int:
        """Requests in the queue."""
        return len(self._queue)

    @asynccontextmanager
    async def slots(self, num_sequences: int, *, background: bool = False, client: str = "") -> AsyncIterator[None]:
        """Waits for the slots and holds them, as `enter` and `leave` say."""
        places, held_s = await self.enter(num_sequences, Requester(client, background)), None
        granted_s = time.perf_counter()
        try:
            yield
            held_s = time.perf_counter() - granted_s
        finally:
            self.leave(places, held_s)

    async def enter(
        self, num_sequences: int, requester: Requester, num_waiting_elsewhere: int = 0, num_tokens: int | None = None
    ) -> Places:
        """Waits for slots; returns them, to be passed to `leave`. 429 if the queue is full.

        `num_waiting_elsewhere`: requests that wait in the queues of other workers, and count for `max_waiting` as well.
        `num_tokens`: of the prompt and all answers; None where they are not known: all requests are equal.
        Cancelling the wait is safe.
        """
        ticket = _Ticket(requester, num_sequences, num_sequences if num_tokens is None else num_tokens)
        if not self._is_here(requester.share):
            self._tokens.arrives(requester.share)
        if not self._queue and self._fits(ticket):
            return self._take(ticket, is_last=False)
        ticket.granted = asyncio.get_running_loop().create_future()
        self._queue.append(ticket)
        self._admit()
        try:
            if not ticket.granted.done():
                self._queue.remove(ticket)
                self.check_queue(num_waiting_elsewhere)
                self._queue.append(ticket)
            return await ticket.granted
        except asyncio.CancelledError:
            self._withdraw(ticket)
            raise
        finally:
            self._forget(requester.share)

    def leave(self, places: Places, held_s: float | None = None) -> None:
        """Gives slots back. `held_s`: duration of a completed request, for the estimate of waits; None of others."""
        if held_s is not None:
            before_s = held_s if self._seconds_per_request is None else self._seconds_per_request
            self._seconds_per_request = before_s + _SMOOTHING * (held_s - before_s)
        share = places.requester.share
        self.num_running_sequences -= places.num_slots
        self.num_running_requests -= 1
        self._num_last -= places.is_last
        self._num_chats -= not share[0]
        self._held[share] -= places.num_slots
        self._wide[share] -= places.num_slots > 1
        self._tokens.end(share, places.num_tokens)
        if not self._held[share]:
            del self._held[share], self._wide[share]
            self._forget(share)
        self._admit()

    def turn_away(self, error: ApiError) -> None:
        """Fails all waiting requests with `error`; running ones continue."""
        queue, self._queue = self._queue, []
        for ticket in queue:
            if not ticket.granted.done():
                ticket.granted.set_exception(replace(error))

    def requeue(self, to: Any) -> None:
        """Ends all waits with `Requeued`: the worker leaves, and the requests wait elsewhere, in their order."""
        queue, self._queue = self._queue, []
        for ticket in queue:
            if not ticket.granted.done():
                ticket.granted.set_exception(Requeued(to))

    def free_in_background(self, client: str) -> int:
        """Slots that background requests of this client would get at once, or next before those of others."""
        share = Requester(client, is_background=True).share
        if any(other.requester.share == share or not other.requester.is_background for other in self._queue):
            return 0
        room, shares = self._background_room, {share, *self._active_shares(background=True)}
        spare = 0 if self._queue else max(0, room - self.num_running_sequences)
        entitled = max(1, room // len(shares)) - self._held[share]
        return max(spare, min(1, entitled))

    def all_free_in_background(self) -> tuple[int, Mapping[str, int]]:
        """`free_in_background` of a client that has nothing here, and of all that have."""
        return self._free_of_new, {client: self.free_in_background(client) for _, client in self._active_shares(True)}

    @property
    def num_free_in_background(self) -> int:
        """Slots that a background request would get at once; 0 while any request waits."""
        return 0 if self._queue else max(0, self._background_room - self.num_running_sequences)

    @property
    def has_free_slots(self) -> bool:
        """Whether a new request would not wait."""
        return not self._queue and self.num_running_sequences < self.num_slots

    def move_first(self, to: Any, there: Admission, num_promised: int) -> int:
        """Moves the next waiting request `to` another worker if it runs `there` at once; its wait ends with `Requeued`.

        Returns the number of slots it takes there, 0 if none is moved. `num_promised`: slots of requests moved before.
        """
        ticket = min(self._queue, key=self._rank, default=None)
        if ticket is None or not there._fits(ticket, num_promised):
            return 0
        self._queue.remove(ticket)
        if not ticket.granted.done():
            ticket.granted.set_exception(Requeued(to))
        self._admit()
        return there._size(ticket)

    def check_queue(self, num_waiting_elsewhere: int = 0) -> None:
        """429 if the queue is full; `num_waiting_elsewhere` as in `enter`."""
        num_waiting = len(self._queue) + num_waiting_elsewhere
        if num_waiting < self._max_waiting:
            return
        message = f"{num_waiting} requests are waiting already; try again later or raise --max-queue"
        raise ApiError(429, message, "queue_full", retry_after_s=self.retry_after_s())

    def retry_after_s(self) -> int:
        """Estimated seconds until the queue is empty, by the duration of recent requests."""
        ahead = sum(map(self._size, self._queue)) + self.num_running_sequences
        each_s = _FIRST_GUESS_S if self._seconds_per_request is None else self._seconds_per_request
        estimate_s = ahead / self.num_slots * each_s
        return max(1, min(_MAX_RETRY_AFTER_S, math.ceil(estimate_s)))

    def expected_wait_s(self, num_sequences: int, requester: Requester, num_tokens: int) -> float | None:
        """Estimated seconds until a new request had its slots, by the duration of recent ones; None before the first.

        It would wait behind those that are next before it, not behind all.
        """
        ticket = _Ticket(requester, num_sequences, num_tokens)
        rank = self._rank(ticket)
        ahead = [other for other in self._queue if self._rank(other) <= rank]
        if not ahead and self._fits(ticket):
            return 0.0
        if self._seconds_per_request is None:
            return None
        num_free = max(0, self.num_slots - self.num_running_sequences)
        num_awaited = sum(map(self._size, [*ahead, ticket])) - num_free
        return max(1, num_awaited) / self.num_slots * self._seconds_per_request

    @property
    def _free_of_new(self) -> int:
        room = self._background_room
        if any(not other.requester.is_background for other in self._queue):
            return 0
        return max(1, 0 if self._queue else room - self.num_running_sequences)

    @property
    def _background_room(self) -> int:
        return max(1, self.num_slots - 1)

    def _size(self, ticket: _Ticket) -> int:
        """Slots that it takes."""
        return min(ticket.num_sequences, self.num_slots - self._leaves_one(ticket))

    def _leaves_one(self, ticket: _Ticket) -> bool:
        requester = ticket.requester
        return self.num_slots > 1 and (requester.is_background or (requester.leaves_one and not self._shares_places))

    def _is_here(self, share: Share) -> bool:
        """Whether it holds slots or waits."""
        return share in self._held or any(ticket.requester.share == share for ticket in self._queue)

    def _forget(self, share: Share) -> None:
        if not self._is_here(share):
            self._tokens.leaves(share, self._is_here)

    def _active_shares(self, background: bool) -> set[Share]:
        """Who holds slots or waits, in the background or not."""
        some = {*self._held, *(ticket.requester.share for ticket in self._queue)}
        return {share for share in some if share[0] == background}

    def _rank(self, ticket: _Ticket) -> tuple[bool, bool, int, int]:
        share = ticket.requester.share
        return share[0], not ticket.requester.is_urgent, *self._tokens.rank(share)

    def _fits(self, ticket: _Ticket, num_promised: int = 0) -> bool:
        leaves_one = self._leaves_one(ticket)
        room = self.num_slots - leaves_one
        size = min(ticket.num_sequences, room)
        taken = self.num_running_sequences + num_promised - (self._num_last if leaves_one else 0)
        if taken + size <= room:
            return True
        return self._shares_places and not num_promised and self._fits_with_others(ticket, size, room)

    def _fits_with_others(self, ticket: _Ticket, size: int, room: int) -> bool:
        """At a worker that runs its requests in turns: they need not have a slot for each of their sequences."""
        share = ticket.requester.share
        held = self._held[share]
        if share[0] and self._num_chats >= room:  # what the background would get is nothing
            return False
        if not held or (size > 1 and self._wide[share] < _MOST_WIDE):
            return True
        if size == 1 and not share[0] and self._num_chats < self.num_slots:  # what the background has, it gives back
            return True
        return held + size <= room // len(self._active_shares(share[0]) | {share})

    def _admit(self) -> None:
        while self._queue and (found := self._next()) is not None:
            ticket, is_last = found
            self._queue.remove(ticket)
            if not ticket.granted.done():
                ticket.granted.set_result(self._take(ticket, is_last))

    def _next(self) -> tuple[_Ticket, bool] | None:
        """Whose turn it is, where it may run now; and whether it takes the slot that those before it have to leave."""
        queue = sorted(self._queue, key=self._rank)
        if self._shares_places:
            return next(((ticket, False) for ticket in queue if self._fits(ticket)), None)
        if not queue or self._fits(queue[0]):
            return (queue[0], False) if queue else None
        is_left = self._leaves_one(queue[0]) and not self._num_last and self.num_running_sequences < self.num_slots
        singles = (one for one in queue if one.num_sequences == 1 and not self._leaves_one(one))
        following = next(singles, None) if is_left else None
        return None if following is None else (following, True)

    def _take(self, ticket: _Ticket, is_last: bool) -> Places:
        places = Places(ticket.requester, self._size(ticket), ticket.num_tokens, is_last)
        share = ticket.requester.share
        self.num_running_sequences += places.num_slots
        self.num_running_requests += 1
        self._num_last += is_last
        self._num_chats += not share[0]
        self._held[share] += places.num_slots
        self._wide[share] += places.num_slots > 1
        self._tokens.begin(share, places.num_tokens)
        return places

    def _withdraw(self, ticket: _Ticket) -> None:
        if ticket.granted.done() and not ticket.granted.cancelled() and ticket.granted.exception() is None:
            self.leave(ticket.granted.result())  # granted in the same tick in which its client disconnected
        elif ticket in self._queue:
            self._queue.remove(ticket)
            self._admit()  # smaller requests behind it may fit now
