"""Whose turn it is: sequences of all clients share the places of a batch.

    next     the client with the fewest running; of its requests, the one with the fewest; who was served longest ago
    yields   where all places are taken: a request that has none running gets one of the client, or of its own
             client's request, that has most; what runs in the background gives way to all others, and what is urgent
             goes before all others

So an answer of 128 sequences has every place that nobody else wants, and a chat beside it waits for one step. Pure:
the batchers do what is said here.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

__all__ = ["NO_CLIENT", "Turn", "Turns"]

T = TypeVar("T", bound=Hashable)


@dataclass(frozen=True)
class Turn:
    """Whose a sequence is. What runs in the background lets all others go first, what is urgent goes before them."""

    client: str = ""
    request: str = ""
    is_background: bool = False
    is_urgent: bool = False

    @property
    def share(self) -> tuple[bool, str]:
        """Whom it counts for: a client's background work is not held against its chats."""
        return self.is_background, self.client


NO_CLIENT = Turn()
"""Of a request that comes from no client."""


class Turns(Generic[T]):
    """Who waits and who runs, of one generating thread.

    Attributes:
        running: those that have a place, the youngest last.
    """

    def __init__(self, num_places: int, turn_of: Callable[[T], Turn]) -> None:
        """`num_places` for all; one of them is never given to what runs in the background, unless it is the only."""
        self.running: list[T] = []
        self._turn_of = turn_of
        self._num_places = num_places
        self._waiting: dict[Turn, OrderedDict[T, None]] = {}  # thousands of a request may go at once, from anywhere
        self._num_running: Counter[Hashable] = Counter()  # by share, and by turn
        self._served: dict[Hashable, int] = {}
        self._num_served = 0

    def __len__(self) -> int:
        """Those that wait."""
        return sum(map(len, self._waiting.values()))

    def __iter__(self) -> Iterator[T]:
        """Those that wait."""
        return (one for some in self._waiting.values() for one in some)

    def put(self, one: T, *, first: bool = False) -> None:
        """It waits behind what its request has waiting, or before it."""
        some = self._waiting.setdefault(self._turn_of(one), OrderedDict())
        some[one] = None
        if first:
            some.move_to_end(one, last=False)

    def next(self) -> T | None:
        """Whose turn it is, of those that wait."""
        return next(iter(self._waiting[min(self._waiting, key=self._rank)])) if self._waiting else None

    def has_place(self, one: T) -> bool:
        """Whether a place is free for it."""
        reserved = self._turn_of(one).is_background and self._num_places > 1
        return len(self.running) < self._num_places - reserved

    def begin(self, one: T) -> None:
        """It has a place from now on."""
        self._leave_queue(one)
        self.running.append(one)
        turn = self._turn_of(one)
        self._num_served += 1
        for what in (turn.share, turn):
            self._num_running[what] += 1
            self._served[what] = self._num_served

    def end(self, one: T) -> None:
        """It is gone, wherever it was."""
        if one in self.running:
            self._leave_place(one)
        else:
            self._leave_queue(one)
        self._forget(self._turn_of(one))

    def preempt(self, one: T) -> None:
        """It gives its place back, and is the next of its request."""
        self._leave_place(one)
        self.put(one, first=True)

    def clear(self) -> None:
        """Nobody waits or runs."""
        self.running, self._waiting = [], {}
        self._num_running.clear()
        self._served.clear()

    def yields_to(self, one: T) -> T | None:
        """Who is to give its place to this one, which waits; None where it has to wait for somebody's end."""
        turn = self._turn_of(one)
        if turn.is_background or self._num_running[turn]:
            return None
        victim = self.victim()
        if victim is None:
            return None
        other = self._turn_of(victim)
        if other.is_background or (turn.is_urgent and not other.is_urgent):
            return victim
        if turn.is_urgent == other.is_urgent and self._num_running[other.share] > self._num_running[turn.share] + 1:
            return victim
        mine = [other for other in self._turns(self.running) if other.share == turn.share]
        largest = max(mine, key=lambda other: self._num_running[other], default=turn)
        return self._youngest(largest) if self._num_running[largest] > 1 else None

    def victim(self, among: Collection[T] | None = None) -> T | None:
        """Who gives way first: of the background, then of what is not urgent, of whoever has most the youngest."""
        turns = self._turns(self.running if among is None else among)
        if not turns:
            return None
        heaviest = max(
            turns,
            key=lambda turn: (
                turn.is_background,
                not turn.is_urgent,
                self._num_running[turn.share],
                self._num_running[turn],
            ),
        )
        return self._youngest(heaviest, among)

    def _turns(self, some: Collection[T]) -> dict[Turn, None]:
        """Of the youngest first."""
        return dict.fromkeys(self._turn_of(one) for one in reversed(list(some)))

    def _youngest(self, turn: Turn, among: Collection[T] | None = None) -> T:
        return next(
            one for one in reversed(self.running) if self._turn_of(one) == turn and (among is None or one in among)
        )

    def _rank(self, turn: Turn) -> tuple[bool, bool, int, int, int, int]:
        return (
            turn.is_background,
            not turn.is_urgent,
            self._num_running[turn.share],
            self._served.get(turn.share, 0),
            self._num_running[turn],
            self._served.get(turn, 0),
        )

    def _leave_queue(self, one: T) -> None:
        turn = self._turn_of(one)
        some = self._waiting.get(turn)
        if some is not None and one in some:
            del some[one]
            if not some:
                del self._waiting[turn]

    def _leave_place(self, one: T) -> None:
        self.running.remove(one)
        turn = self._turn_of(one)
        for what in (turn.share, turn):
            self._num_running[what] -= 1

    def _forget(self, turn: Turn) -> None:
        """What has neither a place nor anything that waits."""
        if not self._num_running[turn] and turn not in self._waiting:
            del self._num_running[turn]
            self._served.pop(turn, None)
        if not self._num_running[turn.share] and all(turn.share != other.share for other in self._waiting):
            del self._num_running[turn.share]
            self._served.pop(turn.share, None)
