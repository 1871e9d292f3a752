"""Whose response is next: clients take turns, and within a client its requests, by the time that theirs have taken."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

__all__ = ["Turns"]

T = TypeVar("T")
# Charged at once, so that of several free places one client does not get all; what takes longer is charged at its end.
_AT_LEAST_S = 0.01


@dataclass
class _Line(Generic[T]):
    """Of a client, whose requests are lines of their own; or of a request, whose items wait. `last_turn`: 0 before."""

    clock_s: float = 0.0
    last_turn: int = 0
    num_taken: int = 0
    lines: dict[Hashable, _Line[T]] = field(default_factory=dict)
    items: deque[T] = field(default_factory=deque)

    @property
    def waits(self) -> bool:
        return bool(self.items) or any(line.waits for line in self.lines.values())

    def of(self, name: Hashable) -> _Line[T]:
        if name not in self.lines:
            now_s = min((one.clock_s for one in self.lines.values()), default=0.0)
            self.lines[name] = _Line(now_s)
        return self.lines[name]

    def first(self, *, is_idle: bool = False) -> tuple[Hashable, _Line[T]] | None:
        waiting = [(name, line) for name, line in self.lines.items() if line.waits and not (is_idle and line.num_taken)]
        return min(waiting, key=lambda one: (one[1].clock_s, one[1].last_turn), default=None)


class Turns(Generic[T]):
    """For one thread. A client that comes when others are busy begins where the one is that is next."""

    def __init__(self) -> None:
        self._clients: _Line[T] = _Line()
        self._num_turns = 0

    def __bool__(self) -> bool:
        return self._clients.waits

    def put(self, client: Hashable, request: Hashable, items: list[T]) -> None:
        """Behind what the request has waiting."""
        if items:
            self._clients.of(client).of(request).items.extend(items)

    def take(self, *, of_idle: bool = False) -> T | None:
        """The item whose turn it is, of those that nothing is taken of with `of_idle`; tell `done` when it is.

        None: there is none.
        """
        of_client = self._clients.first(is_idle=of_idle)
        of_request = None if of_client is None else of_client[1].first()
        if of_client is None or of_request is None:
            return None
        (client, requests), (request, line) = of_client, of_request
        self._num_turns += 1
        requests.last_turn = line.last_turn = self._num_turns
        self._charge(client, request, _AT_LEAST_S, 1)
        return line.items.popleft()

    def done(self, client: Hashable, request: Hashable, seconds: float) -> None:
        """An item of theirs that was taken has taken so long."""
        self._charge(client, request, max(0.0, seconds - _AT_LEAST_S), -1)
        self._forget_empty()

    def drop(self, is_dropped: Callable[[T], bool]) -> None:
        """Forget what nobody waits for any more."""
        for requests in self._clients.lines.values():
            for line in requests.lines.values():
                line.items = deque(item for item in line.items if not is_dropped(item))
        self._forget_empty()

    def _charge(self, client: Hashable, request: Hashable, seconds: float, taken: int) -> None:
        requests = self._clients.lines[client]
        for line in (requests, requests.lines[request]):
            line.clock_s += seconds
            line.num_taken += taken

    def _forget_empty(self) -> None:
        for requests in (*self._clients.lines.values(), self._clients):
            requests.lines = {name: line for name, line in requests.lines.items() if line.waits or line.num_taken}
