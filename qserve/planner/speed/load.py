"""The load that a service shall carry: lengths of requests, and how they arrive."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from qserve.errors import UsageError

__all__ = ["THINK_S", "Arrival", "Load", "read_trace"]

THINK_S = 30.0
"""Between an answer and a user's next question, in the mean: to read some 300 tokens and to write one line."""
_MOST_PROMPTS = 2500
_MOST_OPEN = 20_000
"""Requests that are open at once, or come whatever is answered: a search over layouts simulates these in seconds."""
_SHOWN = 80
"""Characters of a line of a trace that can't be read."""


class Arrival(NamedTuple):
    """One request: `at_s` after the start, and its lengths in tokens.

    `after` is the place in the trace of the request whose answer it waits for; `at_s` is the pause from there on.
    `beside`: an idle engine that starts alone had it in one step with the request before it in the trace.
    """

    at_s: float
    input_tokens: int
    output_tokens: int
    after: int | None = None
    beside: bool = False


@dataclass(frozen=True)
class Load:
    """`input_tokens` and `output_tokens` of a request, and one way of arriving.

    `concurrency` keeps so many requests running (closed loop), `burst` sends so many at once, `rps` draws Poisson
    arrivals, `users` is a closed loop in which each waits `think_s` in the mean after an answer, `trace` names every
    request. None of them: one stream. `prefix_share` of a prompt is in the cache already. `num_prompts` bounds it.
    Lengths vary by `jitter`, as a share; `lengths` are those of each request in turn, where they are known.
    """

    input_tokens: int = 1000
    output_tokens: int = 300
    concurrency: int | None = None
    burst: int | None = None
    rps: float | None = None
    users: int | None = None
    trace: tuple[Arrival, ...] = ()
    num_prompts: int | None = None
    prefix_share: float = 0.0
    think_s: float = THINK_S
    jitter: float = 0.02
    seed: int = 0
    lengths: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        """Raises UsageError for two ways of arriving at once, more requests than are simulated, lengths below one
        token, shares outside 0 to 1, and a share beside a trace."""
        names = ("concurrency", "burst", "rps", "users", "trace")
        given = [f"--{name}" for name in names if getattr(self, name)]
        if len(given) > 1:
            raise UsageError(f"{' and '.join(given)}: a load arrives in one way; leave all but one out")
        for name in ("concurrency", "users"):
            if (getattr(self, name) or 0) > _MOST_OPEN:
                raise UsageError(f"--{name} {getattr(self, name)}: at most {_MOST_OPEN:,} are simulated; plan a part")
        if (self.burst or self.trace) and self.total_prompts > _MOST_OPEN:
            what = f"--burst {self.burst}" if self.burst else f"a trace of {len(self.trace)} requests"
            raise UsageError(
                f"{what}: at most {_MOST_OPEN:,} are simulated; --num-prompts {_MOST_OPEN} takes the first"
            )
        if self.input_tokens < 1 or self.output_tokens < 1:
            raise UsageError(f"--input {self.input_tokens} --output {self.output_tokens}: both are 1 token or more")
        if not 0 <= self.prefix_share < 1:
            raise UsageError(f"--prefix-share {self.prefix_share}: give a share of at least 0 and below 1")
        if self.trace and self.prefix_share:
            raise UsageError(
                f"--prefix-share {self.prefix_share}: --trace names the tokens of each request; leave --prefix-share "
                "out and write into its lines what the cache does not hold"
            )

    @property
    def streams(self) -> int | None:
        """How many requests are open at most in a closed loop; None where arrivals do not wait for answers."""
        return None if self.is_open else (self.concurrency or self.users or 1)

    @property
    def is_open(self) -> bool:
        return bool(self.rps or self.burst or self.trace)

    @property
    def cached_tokens(self) -> float:
        """Tokens of each prompt, in the mean, that are in the cache already and stand beside the drawn lengths; named
        lengths (`trace`, `lengths`) are of what is computed."""
        return 0.0 if self.trace or self.lengths else self.input_tokens * self.prefix_share

    @property
    def longest(self) -> int:
        """Tokens of the longest request, its answer among them."""
        every = (one.input_tokens + one.output_tokens for one in self.trace)
        return max(every, default=self.input_tokens + self.output_tokens)

    @property
    def most_tokens(self) -> int:
        """The same with the lengths that are drawn for it: `jitter` longer, and rounded."""
        return self.longest if self.trace else math.ceil(self.longest * (1 + self.jitter)) + 1

    @property
    def total_prompts(self) -> int:
        """Requests that are simulated: enough for the queue to find its length, few enough for milliseconds."""
        if self.trace or self.burst:
            return min(self.num_prompts or 10**9, len(self.trace) or self.burst or 0)
        most = max(_MOST_PROMPTS, 2 * (self.streams or 0))  # a stream that asks once never met a full server
        if self.num_prompts:
            return min(self.num_prompts, most)
        if self.rps:
            return max(100, min(800, math.ceil(self.rps * 60)))
        return 3 if self.streams == 1 else min(most, max(10 * (self.streams or 1), 24))

    def shared_by(self, replicas: int) -> Load:
        """What one of `replicas` equal servers sees of it."""
        if replicas == 1:
            return self
        part = {
            name: math.ceil(value / replicas)
            for name in ("concurrency", "burst", "users", "num_prompts")
            if (value := getattr(self, name))
        }
        changed: dict[str, Any] = {**part, "trace": self.trace[::replicas], "lengths": self.lengths[::replicas]}
        if self.rps:
            changed["rps"] = self.rps / replicas
        return Load(**{**{name: getattr(self, name) for name in Load.__dataclass_fields__}, **changed})

    def lengths_by(self, draw: random.Random, after: int = 0) -> Callable[[], tuple[int, int]]:
        """One request's tokens a call, from the request `after` so many on: drawn, `jitter` around the named ones, so
        that answers do not end in step; or the known ones."""
        if self.lengths:
            return itertools.islice(itertools.cycle(self.lengths), after, None).__next__
        low, width, any_share = 1 - self.jitter, 2 * self.jitter, draw.random
        new, out = self.input_tokens * (1 - self.prefix_share), self.output_tokens

        def lengths() -> tuple[int, int]:
            return round(new * (low + width * any_share())) or 1, round(out * (low + width * any_share())) or 1

        return lengths

    @property
    def num_first(self) -> int:
        """Requests that come without waiting for an answer."""
        return self.total_prompts if self.is_open else min(self.streams or 1, self.total_prompts)

    def arrivals(self, draw: random.Random) -> Iterator[Arrival]:
        """The requests that come by themselves: all of an open load, the first of each stream of a closed one."""
        if self.trace:
            yield from self.trace[: self.total_prompts]
            return
        at_s, lengths = 0.0, self.lengths_by(draw)
        for index in range(self.num_first):
            if self.rps:
                at_s += draw.expovariate(self.rps)
            elif self.users:
                at_s = draw.uniform(0, self.think_s)
            yield Arrival(at_s if index or self.rps or self.users else 0.0, *lengths())


def read_trace(text: str, where: str = "--trace") -> tuple[Arrival, ...]:
    """Arrivals of JSON lines {"arrival": seconds, "input": tokens, "output": tokens}, in order of time.

    Raises UsageError with the line that can't be read.
    """
    found = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            found.append(Arrival(float(row["arrival"]), int(row["input"]), int(row["output"])))
        except (KeyError, OverflowError, TypeError, ValueError):
            raise UsageError(
                f"{where}, line {number}: {line.strip()[:_SHOWN]}; a line is "
                '{"arrival": 0.5, "input": 1000, "output": 300}'
            ) from None
        one = found[-1]
        if not (0 <= one.at_s < math.inf and one.input_tokens >= 1 and one.output_tokens >= 1):
            raise UsageError(
                f"{where}, line {number}: arrival is seconds, 0 or more and finite; input and output 1 token or more"
            )
    if not found:
        raise UsageError(f"{where} has no requests")
    return tuple(sorted(found, key=lambda arrival: arrival.at_s))
