"""Threads that compute the masks of grammars: fair between requests, and out of the way of the model's own.

Most masks take 0.1 ms, and some take fifty; which, nobody knows before. So each begins on a quick thread. Where a step
misses one that has run for longer than `CHEAP_S`, its thread gets the lowest share of its core, ends with that mask,
and another takes its place: cheap masks never wait behind it. A request that has had several such masks is computed by
slow threads alone from then on.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any
from weakref import ref

__all__ = ["CHEAP_S", "MaskQueue", "MaskThreads"]

CHEAP_S = 0.005
"""Of a core: what a mask may take before it counts as expensive."""
# Of expensive masks, until a request has its masks from slow threads.
_SLOW_AFTER_S = 0.03
_NICE = 10
_Job = tuple["ref[Future[Any]]", Callable[[], tuple[Any, float]]]


class MaskQueue:
    """The masks that one request waits for, whatever the number of its answers.

    Attributes:
        expensive_s: of a core, or by the clock where a thread was preempted: for masks beyond `CHEAP_S`.
        patience_s: for how long steps may still wait for its masks (`late`); belongs to the generating thread.
        jobs: of `MaskThreads`, under its lock.
    """

    def __init__(self, patience_s: float = 0.0) -> None:
        self.expensive_s = 0.0
        self.patience_s = patience_s
        self.jobs: deque[_Job] = deque()

    @property
    def is_slow(self) -> bool:
        """Whether its masks have been expensive."""
        return self.expensive_s > _SLOW_AFTER_S


class MaskThreads:
    """Thread-safe. Threads are started with the first mask."""

    def __init__(self, num_quick: int, num_slow: int) -> None:
        self._num = {False: num_quick, True: num_slow}
        self._lock = threading.Lock()
        # Of quick and of slow threads: who sleeps there, and requests with masks to compute, in turns.
        self._changed = {is_slow: threading.Condition(self._lock) for is_slow in (False, True)}
        self._waiting: dict[bool, deque[MaskQueue]] = {False: deque(), True: deque()}
        self._threads: dict[bool, set[_Thread]] = {False: set(), True: set()}

    def submit(self, queue: MaskQueue, compute: Callable[[], tuple[Any, float]]) -> Future[Any]:
        """What `compute` will return as the first of two; the second is what it has taken, in seconds of a core.

        Nothing is computed for a future that nobody holds any more.
        """
        future: Future[Any] = Future()
        with self._lock:
            queue.jobs.append((ref(future), compute))
            if len(queue.jobs) == 1:
                self._enter(queue)
        return future

    def preempt(self) -> None:
        """A step misses a mask: what has computed for long goes on behind everything else."""
        now_s = time.monotonic()
        with self._lock:
            for thread in list(self._threads[False]):
                if thread.queue is None or now_s - thread.began_s < CHEAP_S:
                    continue
                thread.queue.expensive_s += now_s - thread.began_s
                self._threads[False].discard(thread)
                thread.is_displaced = True
                _be_nice(thread.native_id)
                self._start(is_slow=False)

    def _enter(self, queue: MaskQueue) -> None:
        """Let it take its turn."""
        is_slow = queue.is_slow
        self._waiting[is_slow].append(queue)
        if len(self._threads[is_slow]) < self._num[is_slow]:
            self._start(is_slow=is_slow)
        self._changed[is_slow].notify()

    def _start(self, *, is_slow: bool) -> None:
        thread = _Thread(lambda: self._run(thread, is_slow=is_slow))
        self._threads[is_slow].add(thread)
        thread.start()

    def _run(self, thread: _Thread, *, is_slow: bool) -> None:
        if is_slow:
            _be_nice(threading.get_native_id())
        while not thread.is_displaced:
            self._compute_next(thread, is_slow=is_slow)

    def _compute_next(self, thread: _Thread, *, is_slow: bool) -> None:
        with self._lock:
            queue, (wanted, compute) = self._next(is_slow=is_slow)
            thread.queue, thread.began_s = queue, time.monotonic()
        if (future := wanted()) is not None:
            try:
                result, cpu_s = compute()
            except BaseException as error:  # whoever waits is told
                future.set_exception(error)
            else:
                queue.expensive_s += max(0.0, cpu_s - CHEAP_S)
                future.set_result(result)
        thread.queue = None

    def _next(self, *, is_slow: bool) -> tuple[MaskQueue, _Job]:
        """Of the request whose turn it is; sleeps while there is none."""
        waiting = self._waiting[is_slow]
        while True:
            while not waiting:
                self._changed[is_slow].wait()
            queue = waiting.popleft()
            if queue.is_slow != is_slow:
                self._enter(queue)
                continue
            job = queue.jobs.popleft()
            if queue.jobs:
                self._enter(queue)
            return queue, job


class _Thread(threading.Thread):
    """`queue`: whose mask it computes, since `began_s`. `is_displaced`: it ends with that mask."""

    def __init__(self, run: Callable[[], None]) -> None:
        super().__init__(target=run, name="grammar-masks", daemon=True)
        self.queue: MaskQueue | None = None
        self.began_s = 0.0
        self.is_displaced = False


def _be_nice(native_id: int | None) -> None:
    """Linux counts niceness by thread; nothing takes it back."""
    if sys.platform == "linux" and native_id is not None:
        with suppress(OSError):  # it has ended
            os.setpriority(os.PRIO_PROCESS, native_id, _NICE)
