"""The scheduler, simulated: requests wait, are prefilled in chunks, decode together, are preempted for want of cache.

Between two events (an arrival, a prompt, an answer's end, a full cache) all steps are alike, so that they are taken in
one leap: a run of a hundred requests takes milliseconds.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from qserve.planner.speed.load import Arrival, Load
from qserve.planner.speed.terms.engine_costs import EngineCosts

__all__ = ["Finished", "Limits", "SimulatedRun", "Steps", "simulate"]


class Steps(Protocol):
    """What the scheduler asks of an engine: how long a step takes, and how requests get in."""

    @property
    def costs(self) -> EngineCosts: ...

    def decode_s(self, batch: int, context: float) -> float:
        """Seconds of a step that takes one token of `batch` sequences of `context` tokens in the mean."""
        ...

    def mixed_s(self, batch: int, context: float, chunks: list[tuple[int, int]]) -> float:
        """Seconds of a step with prompts: (new tokens, tokens before them) of each, and `batch` decodes."""
        ...


@dataclass(frozen=True)
class Limits:
    """What bounds a step: sequences, tokens of a step, tokens of KV cache of the replica.

    `recv_interval`: decode steps between two looks at what has arrived, as SGLang's --scheduler-recv-interval has it;
    an idle server looks at once, and so does one that has just prefilled.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    kv_cache_tokens: int
    recv_interval: int = 1


class Finished(NamedTuple):
    """One answered request: seconds from its arrival to the first token and to the last one.

    `place` counts requests in the order of the trace, else as they were issued.
    """

    arrival_s: float
    ttft_s: float
    e2e_s: float
    input_tokens: int
    output_tokens: int
    place: int = -1

    @property
    def tpot_s(self) -> float:
        """Seconds a token after the first: (E2E - TTFT) / (tokens - 1), as vLLM's benchmark defines it."""
        return (self.e2e_s - self.ttft_s) / (self.output_tokens - 1) if self.output_tokens > 1 else 0.0


@dataclass(frozen=True)
class SimulatedRun:
    """All answers, how long it took, and what the time went into."""

    finished: tuple[Finished, ...]
    duration_s: float
    prefill_s: float
    preemptions: int
    rejected: int = 0
    peak_running: int = 0


@dataclass(slots=True)
class _Request:
    arrival_s: float
    input_tokens: int
    output_tokens: int
    place: int
    prefilled: int = 0
    generated: int = 0
    first_token_s: float = -1.0
    ends_at: int = 0
    joined: int = 0

    @property
    def to_prefill(self) -> int:
        """The prompt, and after a preemption what was generated, too."""
        return self.input_tokens + self.generated

    @property
    def held(self) -> int:
        return self.prefilled


class _Scheduler:
    """The state of one replica. Time is `now`; `step` counts decode steps, by which answers end."""

    def __init__(self, steps: Steps, load: Load, limits: Limits) -> None:
        self.steps, self.load, self.limits = steps, load, limits
        self.draw = random.Random(load.seed)  # noqa: S311
        self.future: list[tuple[float, int, _Request]] = []
        self.waiting: deque[_Request] = deque()
        self.prefilling: deque[_Request] = deque()
        self.running: dict[int, _Request] = {}
        self.ends: list[tuple[int, int]] = []
        self.now = self.prefill_s = 0.0
        self.step = self.held_tokens = self.preemptions = self.rejected = self.count = self.issued = self.peak = 0
        self.promised = 0
        """Tokens of admitted prompts that are not in the cache yet."""
        self.receives_at = 0
        """The step from which arrivals are looked at again."""
        self.is_closed, self.total_prompts = not load.is_open, load.total_prompts
        self.done: list[Finished] = []
        costs = steps.costs
        self.intake_s, self.intake_s_per_token = costs.intake_ms / 1000, costs.intake_ms_per_1k / 1e6
        self.mixes = costs.mixes_prefill
        self.followers: dict[int, list[tuple[int, Arrival]]] = {}
        for place, arrival in enumerate(load.arrivals(self.draw)):
            if arrival.after is None:
                self._issue(arrival.at_s, arrival.input_tokens, arrival.output_tokens, place)
            else:
                self.followers.setdefault(arrival.after, []).append((place, arrival))

    def run(self) -> SimulatedRun:
        while self.future or self.waiting or self.prefilling or self.running:
            self._admit()
            if self.prefilling:
                self._prefill_step()
            elif self.running:
                self._decode_leap()
            elif self.future:
                self.now = max(self.now, self.future[0][0])
        # The last token still has to reach its client.
        return SimulatedRun(
            tuple(self.done), self.now, self.prefill_s, self.preemptions, self.rejected, self.peak
        )  # fmt: skip

    def _issue(self, at_s: float, input_tokens: int, output_tokens: int, place: int) -> None:
        self.issued += 1
        request = _Request(at_s, input_tokens, output_tokens, place)
        ready = at_s + self.intake_s + self.intake_s_per_token * input_tokens
        heapq.heappush(self.future, (ready, self.issued, request))

    def _receive(self) -> None:
        interval = self.limits.recv_interval
        if interval > 1 and self.running:
            late = self.step - self.receives_at
            if late < 0:
                return
            self.receives_at = self.step + interval - late % interval
            if late % interval:
                return
        while self.future and self.future[0][0] <= self.now + 1e-9:
            self.waiting.append(heapq.heappop(self.future)[2])

    def _admit(self) -> None:
        self._receive()
        limits = self.limits
        watermark = 0.01 * limits.kv_cache_tokens if self.running or self.prefilling else 0
        while self.waiting and len(self.running) + len(self.prefilling) < limits.max_num_seqs:
            request = self.waiting[0]
            if request.input_tokens + request.output_tokens > limits.kv_cache_tokens:
                self.waiting.popleft()
                self.rejected += 1
                self._next_of_stream(request)
                continue
            promised = self.promised
            if self.held_tokens + promised + request.to_prefill + watermark > limits.kv_cache_tokens:
                break
            self.prefilling.append(self.waiting.popleft())
            self.promised += request.to_prefill - request.prefilled
            if promised > limits.max_num_batched_tokens:
                break

    def _prefill_step(self) -> None:
        mixes, batch = self.mixes, len(self.running)
        budget = self.limits.max_num_batched_tokens - (batch if mixes else 0)
        chunks, completed = [], []
        while self.prefilling and budget > 0:
            request = self.prefilling[0]
            new = min(budget, request.to_prefill - request.prefilled)
            chunks.append((new, request.prefilled))
            request.prefilled += new
            self.held_tokens += new
            self.promised -= new
            budget -= new
            if request.prefilled < request.to_prefill:
                break
            completed.append(self.prefilling.popleft())
        decoding = batch if mixes else 0
        # A prompt larger than what is left of a full batch still moves by one token a step.
        taken = self.steps.mixed_s(decoding, self._mean_context(), chunks or [(1, 0)])
        self.now += taken
        self.prefill_s += taken
        self.receives_at = self.step
        if decoding:
            self._advance(1)
        for request in completed:
            self._join(request)

    def _join(self, request: _Request) -> None:
        """The step that ends the prompt gives the first token."""
        if request.first_token_s < 0:
            request.first_token_s = self.now
        request.generated += 1
        self.count += 1
        request.joined = self.step - request.generated
        request.ends_at = self.step + request.output_tokens - request.generated
        self.running[self.count] = request
        heapq.heappush(self.ends, (request.ends_at, self.count))
        self.peak = max(self.peak, len(self.running))
        if request.ends_at <= self.step:
            self._finish()

    def _decode_leap(self) -> None:
        """As many steps as are alike: to the next end, the next arrival, or the last free block."""
        batch, context = len(self.running), self._mean_context()
        count = self.ends[0][0] - self.step
        free = self.limits.kv_cache_tokens - self.held_tokens
        if free < batch:
            self._preempt()
            return
        count = min(count, free // batch)
        one = self.steps.decode_s(batch, context)
        if self.future and not self.waiting:
            until = self.future[0][0] - self.now
            count = min(count, self._steps_to_receive(max(1, int(until / one) + 1)))
        count = max(1, count)
        self.now += count * (one if count < 8 else self.steps.decode_s(batch, context + count / 2))
        self._advance(count)
        self._finish()

    def _steps_to_receive(self, steps: int) -> int:
        """From now to the first look at what arrives in so many steps."""
        interval = self.limits.recv_interval
        if interval == 1:
            return steps
        first = self.receives_at - self.step
        return first + max(0, -(-(steps - first) // interval)) * interval

    def _advance(self, count: int) -> None:
        self.step += count
        self.held_tokens += count * len(self.running)

    def _mean_context(self) -> float:
        return self.held_tokens / (len(self.running) + len(self.prefilling) or 1)

    def _finish(self) -> None:
        while self.ends and self.ends[0][0] <= self.step:
            _, key = heapq.heappop(self.ends)
            request = self.running.pop(key, None)
            if request is None:  # preempted meanwhile
                continue
            self.held_tokens -= self._tokens_of(request)
            ttft, e2e = request.first_token_s - request.arrival_s, self.now - request.arrival_s
            self.done.append(
                Finished(request.arrival_s, ttft, e2e, request.input_tokens, request.output_tokens, request.place)
            )
            self._next_of_stream(request)

    def _tokens_of(self, request: _Request) -> int:
        """Tokens in the cache: the prefilled ones, and one for each decode step since."""
        generated = self.step - request.joined
        return request.prefilled + generated - request.generated

    def _preempt(self) -> None:
        """The request that came last gives its blocks back and is prefilled again, with what it had generated."""
        key = max(self.running)
        request = self.running.pop(key)
        self.held_tokens -= self._tokens_of(request)
        request.generated = self.step - request.joined
        request.prefilled = 0
        self.waiting.appendleft(request)
        self.preemptions += 1

    def _next_of_stream(self, ended: _Request) -> None:
        if self.followers:
            for place, arrival in self.followers.pop(ended.place, ()):
                self._issue(self.now + arrival.at_s, arrival.input_tokens, arrival.output_tokens, place)
        if self.is_closed and self.issued < self.total_prompts:
            pause = self.draw.expovariate(1 / self.load.think_s) if self.load.users else 0.0
            self._issue(self.now + pause, *self.load.lengths(self.draw), self.issued)


def simulate(steps: Steps, load: Load, limits: Limits) -> SimulatedRun:
    """The load on one replica. The same arguments give the same run."""
    return _Scheduler(steps, load, limits).run()
