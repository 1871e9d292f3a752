"""The scheduler, simulated: requests wait, are prefilled in chunks, decode together, are preempted for want of cache.

Between two events (an arrival, a prompt, an answer's end, a full cache) all steps are alike, so that they are taken in
one leap: a run of a hundred requests takes milliseconds.
"""

from __future__ import annotations

import math
from bisect import insort
from collections import deque
from collections.abc import Callable, Sequence

from qserve.planner.speed.load import Load
from qserve.planner.speed.request_source import Request, RequestSource
from qserve.planner.speed.simulated import WATERMARK, Finished, Limits, SimulatedRun, Steps

__all__ = ["simulate", "simulate_while"]

_finished = tuple.__new__
"""Of a named tuple, a third of the time that its own constructor takes."""


class _Scheduler(RequestSource):
    """The state of one replica. Time is `now`; `step` counts decode steps, by which answers end.

    Called by the request and by the leap, for hundreds of layouts: what is looked up there stands in slots and locals,
    and what comes next stands last in its list, where it is taken without moving the rest.
    """

    __slots__ = (
        "cache_tokens",
        "count",
        "decode_s",
        "done",
        "ends",
        "held_tokens",
        "latest",
        "limits",
        "mixed_s",
        "mixes",
        "most_tokens",
        "now",
        "peak",
        "preemptions",
        "prefill_s",
        "prefilling",
        "promised",
        "receives_at",
        "recv_interval",
        "rejected",
        "running",
        "starts_alone",
        "step",
        "waiting",
    )

    def __init__(self, steps: Steps, load: Load, limits: Limits) -> None:
        super().__init__(steps.costs, load)
        self.decode_s, self.mixed_s, self.limits = steps.decode_s, steps.mixed_s, limits
        self.recv_interval, self.cache_tokens = limits.recv_interval, limits.kv_cache_tokens
        self.most_tokens = limits.max_num_batched_tokens
        self.waiting: deque[Request] = deque()
        self.prefilling: deque[Request] = deque()
        self.ends: list[tuple[int, int, Request]] = []
        """(-step, -key, request) of what runs, the next end last; an entry whose key is not the request's is of before
        its preemption."""
        self.latest: list[tuple[int, Request]] = []
        """(key, request) in the order of joining; likewise, and of what has ended."""
        self.now = self.prefill_s = 0.0
        self.step = self.held_tokens = self.preemptions = self.rejected = self.count = self.peak = 0
        self.running = 0
        self.promised = 0
        """Tokens of admitted prompts that are not in the cache yet."""
        self.receives_at = 0
        """The step from which arrivals are looked at again."""
        self.done: list[Finished] = []
        self.mixes, self.starts_alone = steps.costs.mixes_prefill, steps.costs.starts_alone

    def run(self) -> SimulatedRun:
        future, waiting, prefilling, looks_late = self.future, self.waiting, self.prefilling, self.recv_interval > 1
        while True:
            if self.next_s <= self.now + 1e-9 or (looks_late and future):
                self._receive()
            if waiting:
                self._admit()
            if prefilling:
                self._prefill_step()
            elif self.running:
                self._decode_leap()
            elif future:
                self.now = max(self.now, self.next_s)
            elif not waiting:
                break
        # The last token still has to reach its client.
        return SimulatedRun(tuple(self.done), self.now, self.prefill_s, self.preemptions, self.rejected, self.peak)

    def _receive(self) -> None:
        interval, future, waiting, until = self.recv_interval, self.future, self.waiting, self.now + 1e-9
        if interval > 1 and self.running:
            late = self.step - self.receives_at
            if late < 0:
                return
            self.receives_at = self.step + interval - late % interval
            if late % interval:
                return
        is_first = self.starts_alone and not (self.running or self.prefilling or waiting)
        while self.next_s <= until:
            waiting.append(self.take())
            if is_first and not (future and future[-1][2].beside):
                break

    def _admit(self) -> None:
        waiting, prefilling, cache, running = self.waiting, self.prefilling, self.cache_tokens, self.running
        most = self.limits.max_num_seqs
        if running + len(prefilling) >= most:
            return
        watermark = WATERMARK * cache if running or prefilling else 0
        while waiting and running + len(prefilling) < most:
            request = waiting[0]
            if request.input_tokens + request.output_tokens > cache:
                waiting.popleft()
                self.rejected += 1
                self.issue_next(request, self.now)
                continue
            promised, wanted = self.promised, request.input_tokens + request.generated
            if self.held_tokens + promised + wanted + watermark > cache:
                break
            prefilling.append(waiting.popleft())
            self.promised = promised + wanted - request.prefilled
            if promised > self.most_tokens:
                break

    def _prefill_step(self) -> None:
        prefilling, running = self.prefilling, self.running
        decoding = running if self.mixes else 0
        left = budget = self.most_tokens - decoding
        chunks, completed = [], []
        while prefilling and left > 0:
            request = prefilling[0]
            before = request.prefilled
            new = request.input_tokens + request.generated - before
            if new > left:
                chunks.append((left, before))
                request.prefilled = before + left
                left = 0
                break
            chunks.append((new, before))
            request.prefilled = before + new
            left -= new
            completed.append(prefilling.popleft())
        held = self.held_tokens
        if budget > 0:
            held += budget - left
            self.promised -= budget - left
        # A prompt larger than what is left of a full batch still moves by one token a step. The mean is over all that
        # hold tokens, the completed ones not among them yet.
        context = held / (running + len(prefilling) or 1)
        taken = self.mixed_s(decoding, context, chunks or [(1, 0)])
        self.now += taken
        self.prefill_s += taken
        self.receives_at = self.step
        self.step += 1 if decoding else 0
        self.held_tokens = held + decoding
        if completed:
            self._join(completed)

    def _join(self, completed: list[Request]) -> None:
        """The step that ends their prompts gives the first tokens."""
        now, step, ends, latest, running, key = self.now, self.step, self.ends, self.latest, self.running, self.count
        for request in completed:
            if request.first_token_s < 0:
                request.first_token_s = now
            request.generated = generated = request.generated + 1
            key += 1
            running += 1
            request.joined, request.key = step, key
            insort(ends, (generated - step - request.output_tokens, -key, request))
            latest.append((key, request))
            if running > self.peak:
                self.peak = running
            if request.output_tokens <= generated:
                self.count, self.running = key, running
                self._finish()
                running = self.running
        self.count, self.running = key, running

    def _decode_leap(self) -> None:
        """As many steps as are alike: to the next end, the next arrival, or the last free block."""
        batch, held, step, ends_at = self.running, self.held_tokens, self.step, -self.ends[-1][0]
        free = self.cache_tokens - held
        if free < batch:
            self._preempt()
            return
        context = held / batch
        count, most = ends_at - step, free // batch
        if most < count:
            count = most
        one = self.decode_s(batch, context)
        if self.next_s < math.inf and not self.waiting:
            most = int((self.next_s - self.now) / one) + 1
            if most < 1:
                most = 1
            if self.recv_interval > 1:
                most = self._steps_to_receive(most)
            if most < count:
                count = most
        if count < 1:
            count = 1
        self.now += count * (one if count < 8 else self.decode_s(batch, context + count / 2))
        self.step = step = step + count
        self.held_tokens = held + count * batch
        if ends_at <= step:
            self._finish()

    def _steps_to_receive(self, steps: int) -> int:
        """From now to the first look at what arrives in so many steps, where not every step looks."""
        interval = self.recv_interval
        first = self.receives_at - self.step
        return first + max(0, -(-(steps - first) // interval)) * interval

    def _finish(self) -> None:
        ends, step, now, done, until = self.ends, self.step, self.now, self.done, -self.step
        has_next = self.is_closed or bool(self.followers)
        while ends and ends[-1][0] >= until:
            _, key, request = ends.pop()
            if request.key != -key:  # preempted meanwhile
                continue
            request.key = 0
            self.running -= 1
            self.held_tokens -= request.prefilled + step - request.joined
            came = request.arrival_s
            done.append(
                _finished(
                    Finished,
                    (
                        came,
                        request.first_token_s - came,
                        now - came,
                        request.input_tokens,
                        request.output_tokens,
                        request.place,
                    ),
                )
            )
            if has_next:
                self.issue_next(request, self.now)

    def _preempt(self) -> None:
        """The request that came last gives its blocks back and is prefilled again, with what it had generated."""
        key, request = self.latest.pop()
        while request.key != key:
            key, request = self.latest.pop()
        since = self.step - request.joined
        self.running -= 1
        self.held_tokens -= request.prefilled + since
        request.generated += since
        request.prefilled = request.key = 0
        self.waiting.appendleft(request)
        self.preemptions += 1


class _Unwanted(Exception):
    """The rest of a run is not wanted."""


class _Watched(_Scheduler):
    """A scheduler whose answers are looked at as they come; `goes_on` is given those that ended just now."""

    __slots__ = ("goes_on", "seen")

    def __init__(self, steps: Steps, load: Load, limits: Limits, goes_on: Callable[[Sequence[Finished]], bool]) -> None:
        super().__init__(steps, load, limits)
        self.goes_on, self.seen = goes_on, 0

    def _finish(self) -> None:
        super()._finish()
        fresh = self.done[self.seen :]
        self.seen += len(fresh)
        if fresh and not self.goes_on(fresh):
            raise _Unwanted


def simulate(steps: Steps, load: Load, limits: Limits) -> SimulatedRun:
    """The load on one replica. The same arguments give the same run."""
    return _Scheduler(steps, load, limits).run()


def simulate_while(
    steps: Steps, load: Load, limits: Limits, goes_on: Callable[[Sequence[Finished]], bool]
) -> SimulatedRun | None:
    """As `simulate`; None where `goes_on` said of answers that had just ended that the rest is not wanted."""
    try:
        return _Watched(steps, load, limits, goes_on).run()
    except _Unwanted:
        return None
