"""Requests that a server answered, and the same requests on simulated steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from qserve.planner.speed.load import Arrival, Load
from qserve.planner.speed.simulate import simulate
from qserve.planner.speed.simulated import Finished, Limits, Steps

__all__ = ["ServedRequest", "loads_of", "replayed"]

_SAME_STREAM_S = 0.05
"""A request that comes so soon after an answer's end is taken for the next one of a closed loop."""
_EARLY_S = 0.005
"""A client may have its answer, and ask again, before the gateway has noted the end."""
_SAME_STEP = 0.25
"""Of a first token's time: what another prompt takes at least where it is computed after it and not beside it."""
_IDLE_S = 1.0
"""After so long without a request what comes next is a load of its own."""


@dataclass(frozen=True)
class ServedRequest:
    """One answered request of a run: when it came, its lengths, and what it took."""

    at_s: float
    input_tokens: int
    output_tokens: int
    ttft_s: float
    e2e_s: float

    @property
    def tpot_s(self) -> float:
        return (self.e2e_s - self.ttft_s) / (self.output_tokens - 1) if self.output_tokens > 1 else 0.0

    @property
    def ends_s(self) -> float:
        return self.at_s + self.e2e_s


def replayed(steps: Steps, limits: Limits, served: Iterable[ServedRequest]) -> Iterator[tuple[ServedRequest, Finished]]:
    """Each request beside what it takes on `steps`, as they came: closed loops as closed loops, the rest by the clock.

    A request that followed an answer at once follows its simulated end, so that a machine that is slower or faster than
    its plan meets as many requests at a time as the plan does. Which of those that came together an idle engine took
    in its first step is a matter of milliseconds: it is read from when their first tokens came. Requests that never
    fit the cache are left out.
    """
    for load in loads_of(served):
        part, beside = _by_first_step(load) if steps.costs.starts_alone else (load, range(0))
        run = simulate(steps, Load(trace=tuple(_arrivals(part, beside))), limits)
        for one in run.finished:
            yield part[one.place], one


def loads_of(served: Iterable[ServedRequest]) -> Iterator[list[ServedRequest]]:
    """Parts between which nothing was asked for a while, each in the order of arrival."""
    part: list[ServedRequest] = []
    until_s = 0.0
    for one in sorted(served, key=lambda one: one.at_s):
        if part and one.at_s > until_s + _IDLE_S:
            yield part
            part = []
        part.append(one)
        until_s = max(until_s, one.ends_s)
    if part:
        yield part


def _by_first_step(served: Sequence[ServedRequest]) -> tuple[list[ServedRequest], range]:
    """The one that found the engine idle, those that were computed beside it, the others; the places of the second.

    It is the one that had its first token first: of requests that come within milliseconds the gateway does not know in
    which order the engine got them.
    """
    quickest = min(served, key=lambda one: one.at_s + one.ttft_s)
    first, *beside = [one for one in served if one is quickest or _shared_a_step(quickest, one)]
    alone = [one for one in served if one is not first and one not in beside]
    return [first, *beside, *alone], range(1, 1 + len(beside))


def _shared_a_step(first: ServedRequest, one: ServedRequest) -> bool:
    """Whether the prompt of `one` was computed with that of `first`, which found the engine idle."""
    later_s = one.at_s + one.ttft_s - first.at_s - first.ttft_s
    return one.at_s < first.at_s + first.ttft_s and later_s < _SAME_STEP * first.ttft_s


def _arrivals(served: Sequence[ServedRequest], beside: range) -> Iterator[Arrival]:
    """In their order; a request takes up the stream of the last answer that ended just before it."""
    start = served[0].at_s
    free: set[int] = set()
    for place, one in enumerate(served):
        ended = [other for other in free if -_EARLY_S <= one.at_s - served[other].ends_s <= _SAME_STREAM_S]
        free.add(place)
        if ended:
            before = max(ended, key=lambda other: served[other].ends_s)
            free.remove(before)
            yield Arrival(max(0.0, one.at_s - served[before].ends_s), one.input_tokens, one.output_tokens, before)
        else:
            at_s = max(0.0, one.at_s - start)
            yield Arrival(at_s, one.input_tokens, one.output_tokens, beside=place in beside)
