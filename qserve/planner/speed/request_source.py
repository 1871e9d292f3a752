"""The requests of a load as they reach one replica: those on their way, and those that follow an answer."""

from __future__ import annotations

import math
import random
from bisect import insort
from dataclasses import dataclass
from functools import lru_cache

from qserve.planner.speed.load import Arrival, Load
from qserve.planner.speed.terms.engine_costs import EngineCosts

__all__ = ["Request", "RequestSource"]


@dataclass(slots=True)
class Request:
    """`key` counts those that joined the running ones, 0: it does not run; `joined` is the step at which it did."""

    arrival_s: float
    input_tokens: int
    output_tokens: int
    place: int
    beside: bool = False
    prefilled: int = 0
    generated: int = 0
    first_token_s: float = -1.0
    joined: int = 0
    key: int = 0


class RequestSource:
    """What is issued and not received yet. The scheduler that receives it is a subclass, so that its loops find both
    in slots."""

    __slots__ = (
        "cached_tokens",
        "draw",
        "followers",
        "free_s",
        "future",
        "intake_s",
        "intake_s_per_token",
        "is_closed",
        "issued",
        "key",
        "lengths",
        "load",
        "next_s",
        "queued_s",
        "ready",
        "total_prompts",
    )

    def __init__(self, costs: EngineCosts, load: Load) -> None:
        self.load = load
        self.draw = random.Random(load.seed)  # noqa: S311
        self.lengths = load.lengths_by(self.draw, load.num_first)
        self.future: list[tuple[float, int, Request]] = []
        """(-seconds, -number, request), the next one last: seconds of when it comes where a front end reads one after
        the other, else of when it is there."""
        self.next_s = math.inf
        """When it is there."""
        self.ready, self.key, self.issued = 0.0, 0.0, 0
        self.is_closed, self.total_prompts = not load.is_open, load.total_prompts
        self.intake_s, self.queued_s = costs.intake_ms / 1000, costs.queued_ms / 1000
        self.intake_s_per_token = costs.intake_ms_per_1k / 1e6
        self.cached_tokens = load.cached_tokens
        self.free_s = 0.0
        """When the server's front end has read what was taken."""
        self.followers: dict[int, list[tuple[int, Arrival]]] = {}
        arrivals = _arrivals_of(load) if load.is_open else load.arrivals(self.draw)
        for place, arrival in enumerate(arrivals):
            at_s, new, out, after, beside = arrival
            if after is None:
                self.future.append(self._issued(at_s, new, out, place, beside))
            else:
                self.followers.setdefault(after, []).append((place, arrival))
        self.future.sort()
        self._look()

    def issue_next(self, ended: Request, now_s: float) -> None:
        """What follows a request that ended: its own followers, or the next one of its stream."""
        if self.followers:
            for place, arrival in self.followers.pop(ended.place, ()):
                self._issue(now_s + arrival.at_s, arrival.input_tokens, arrival.output_tokens, place)
        if self.is_closed and self.issued < self.total_prompts:
            pause = self.draw.expovariate(1 / self.load.think_s) if self.load.users else 0.0
            self._issue(now_s + pause, *self.lengths(), self.issued)

    def take(self) -> Request:
        """The next one, which is there by now; the front end turns to the one after it."""
        request = self.future.pop()[2]
        if self.queued_s and not request.beside:
            self.ready = self.next_s
            self.free_s = self.next_s - self.intake_s
        self._look()
        return request

    def _issued(
        self, at_s: float, input_tokens: int, output_tokens: int, place: int, beside: bool = False
    ) -> tuple[float, int, Request]:
        self.issued += 1
        if not beside:
            self.key = at_s if self.queued_s else self._ready(at_s, input_tokens)
        return -self.key, -self.issued, Request(at_s, input_tokens, output_tokens, place, beside)

    def _ready(self, at_s: float, input_tokens: int) -> float:
        """When a front end has read it that has nothing else to do."""
        # What caches answer of a prompt is tokenized, too.
        tokens = input_tokens + self.cached_tokens
        return at_s + self.intake_s + self.queued_s + self.intake_s_per_token * tokens

    def _look(self) -> None:
        """Finds when the next one is there. One that is issued later may still come before it, after a shorter pause:
        nobody's turn is kept before it is taken."""
        if not self.future:
            self.next_s = math.inf
            return
        key, _, request = self.future[-1]
        if not self.queued_s:
            self.next_s = -key
        elif request.beside:
            self.next_s = self.ready
        else:
            self.next_s = self._ready(request.arrival_s, request.input_tokens)
            if self.free_s > request.arrival_s:
                self.next_s += self.free_s - request.arrival_s

    def _issue(self, at_s: float, input_tokens: int, output_tokens: int, place: int) -> None:
        insort(self.future, self._issued(at_s, input_tokens, output_tokens, place))
        self._look()


@lru_cache(maxsize=16)
def _arrivals_of(load: Load) -> tuple[Arrival, ...]:
    """Of a load whose arrivals do not wait for answers: every layout with as many replicas meets the same ones."""
    return tuple(load.arrivals(random.Random(load.seed)))  # noqa: S311
