"""The queue in front of the model: packs waiting texts fairly into rows that threads compute.

Several rows may run at once on a CPU, each with its share of the cores; one alone has them all, which is faster where
there are few (docs/results/log/reward.md).
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from qserve.model.failures import WorkerStopping
from qserve.reward.scoring.compute import Output, RowComputer
from qserve.reward.scoring.fair_queue import FairQueue, Flow
from qserve.reward.scoring.forward import PooledText
from qserve.reward.scoring.rows import Group, grouped, into_rows, padded_rows

__all__ = ["HORIZON_ROWS", "Job", "RowQueue", "RowRules"]

_log = logging.getLogger("qserve.worker")
# A first text that finds nobody at work waits this long for company, as long as more keeps coming.
_COMPANY_S, _MOST_COMPANY_S = 0.001, 0.004
HORIZON_ROWS = 8
"""Rows are made from this many rows' worth of what waits; more would not make them fuller."""
# How long the end waits for rows that are being computed.
_LONGEST_ROW_S = 5.0


@dataclass(frozen=True)
class RowRules:
    """How rows are made and run.

    Attributes:
        row_tokens: tokens of a row, padding counted; a text that is longer has a row to itself.
        tokens_at_once: of all rows that run at the same time.
        packs: texts lie end to end; else padded, one a row of the batch.
        shares: texts with the same beginning are computed once for it.
        num_workers: rows that run at once.
        num_threads: cores of them all together; 0 leaves torch's setting alone.
    """

    row_tokens: int
    tokens_at_once: int
    packs: bool
    shares: bool
    num_workers: int = 1
    num_threads: int = 0


@dataclass(eq=False)
class Job:
    """One text on its way. `deliver` is called once, by a worker's thread, and raises nothing: others wait behind that
    thread. `is_cancelled` is asked before it runs."""

    text: PooledText
    deliver: Callable[[Output], None]
    is_cancelled: Callable[[], bool] = field(default=lambda: False)


class RowQueue:
    """`put` hands jobs over and returns. Between `start` and `stop` threads of its own compute them."""

    def __init__(self, computer: RowComputer, rules: RowRules) -> None:
        self._computer = computer
        self._rules = rules
        self._arrivals: queue.SimpleQueue[tuple[Flow, Sequence[Job]]] = queue.SimpleQueue()
        self._waiting: FairQueue[Job] = FairQueue(lambda job: len(job.text.token_ids))
        self._choosing = threading.Lock()
        self._changed = threading.Condition()
        self._tokens_running = 0
        self._num_running = 0
        self._stopped = False
        self._threads: list[threading.Thread] = []
        self.on_death: Callable[[BaseException], None] = lambda error: None
        """Told, by a thread, that nothing can be computed any more."""

    def put(self, jobs: Sequence[Job], flow: Flow) -> None:
        """Hand over jobs of one request; `flow` is the same for all that it hands over. After `stop` they fail."""
        self._arrivals.put((flow, jobs))
        if self._stopped:
            self._fail_waiting()

    def start(self) -> None:
        """Start the threads, also after a `stop`. Raises RuntimeError while threads of before still run."""
        if any(thread.is_alive() for thread in self._threads):
            raise RuntimeError("the queue's threads run already; one program at a time can start a scorer")
        self._stopped = False
        self._threads = [
            threading.Thread(target=self._work, name=f"reward-row-{index}", daemon=True)
            for index in range(self._rules.num_workers)
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End the threads after the rows that they are at; what still waits fails."""
        self._stopped = True
        for _ in self._threads:
            self._arrivals.put((Flow(), ()))
        for thread in self._threads:  # a thread that is still in a row when the interpreter ends aborts the process
            thread.join(_LONGEST_ROW_S)
        self._fail_waiting()

    def run(self, jobs: Sequence[Job]) -> None:
        """Compute `jobs` here and now; returns when all are delivered. Not between `start` and `stop`."""
        self._waiting.put(Flow(), jobs)
        threads = [threading.Thread(target=self._work_until_empty) for _ in range(self._rules.num_workers - 1)]
        for thread in threads:
            thread.start()
        self._work_until_empty()
        for thread in threads:
            thread.join()
        if self._rules.num_threads:
            torch.set_num_threads(self._rules.num_threads)  # the caller's thread as it was

    def _work(self) -> None:
        while not self._stopped:
            with self._choosing:
                self._arrive()
                chosen = None if self._stopped else self._choose()
            if chosen is not None:
                try:
                    self._run(*chosen)
                except Exception as error:
                    _log.exception("scoring ended")
                    self.on_death(error)
                    return

    def _work_until_empty(self) -> None:
        while True:
            with self._choosing:
                chosen = self._choose() if self._waiting else None
            if chosen is None:
                return
            self._run(*chosen)

    def _fail_waiting(self) -> None:
        """Nobody computes what waits; a caller that heard nothing would wait for ever."""
        failed: list[Job] = []
        if self._choosing.acquire(timeout=_LONGEST_ROW_S):  # held while a thread waits for the end of another's row
            try:
                failed += self._waiting.clear()
            finally:
                self._choosing.release()
        while True:
            try:
                failed += self._arrivals.get_nowait()[1]
            except queue.Empty:
                break
        for job in failed:
            job.deliver(WorkerStopping())

    def _arrive(self) -> None:
        """Takes in what has come; blocks while nothing waits, and a moment longer when nobody is at work."""
        deadline_s = time.monotonic() + _MOST_COMPANY_S
        busy = bool(self._waiting)
        while not self._stopped:
            full = self._waiting.num_tokens >= self._rules.row_tokens
            try:
                if not self._waiting:
                    self._waiting.put(*self._arrivals.get())
                    deadline_s = time.monotonic() + _MOST_COMPANY_S
                elif busy or full or self._num_running or time.monotonic() > deadline_s:
                    self._waiting.put(*self._arrivals.get_nowait())
                else:
                    self._waiting.put(*self._arrivals.get(timeout=_COMPANY_S))
            except queue.Empty:
                return

    def _choose(self) -> tuple[tuple[Group, ...], list[Job]] | None:
        """The next row and the jobs that it indexes, taken out of what waits. None when all have been cancelled."""
        self._waiting.drop(lambda job: job.is_cancelled())
        if not self._waiting:
            return None
        window = self._waiting.window(HORIZON_ROWS * self._rules.row_tokens)
        try:
            row = self._next_row([job.text for job in window])
        except Exception:  # one of them can't be packed: the next goes alone, so that only its own fault is its
            _log.exception("%d texts can't be packed together", len(window))
            row = (Group(0, (0,), (len(window[0].text.token_ids),)),)
        self._waiting.take([window[member] for group in row for member in group.members])
        self._wait_for_capacity(row)
        return row, window

    def _next_row(self, texts: list[PooledText]) -> tuple[Group, ...]:
        if not self._rules.packs:
            return padded_rows([len(text.token_ids) for text in texts], self._rules.row_tokens)[0]
        if self._rules.shares:
            groups = grouped([text.token_ids for text in texts])
        else:
            groups = [Group(0, (index,), (len(text.token_ids),)) for index, text in enumerate(texts)]
        return into_rows(groups, self._rules.row_tokens)[0]

    def _wait_for_capacity(self, row: tuple[Group, ...]) -> None:
        """Until the row fits beside those that run: activations were planned for `tokens_at_once`."""
        tokens = sum(group.num_tokens for group in row)
        with self._changed:
            self._changed.wait_for(
                lambda: not self._num_running or self._tokens_running + tokens <= self._rules.tokens_at_once
            )
            self._num_running += 1
            self._tokens_running += tokens

    def _run(self, row: tuple[Group, ...], jobs: list[Job]) -> None:
        if self._rules.num_threads:
            alone = self._num_running == 1 and not self._waiting
            num_workers = 1 if alone else self._rules.num_workers
            torch.set_num_threads(max(1, self._rules.num_threads // num_workers))
        try:
            outputs = self._computer.compute(row, [job.text for job in jobs])
        finally:
            with self._changed:
                self._num_running -= 1
                self._tokens_running -= sum(group.num_tokens for group in row)
                self._changed.notify_all()
        for member, output in outputs.items():
            jobs[member].deliver(output)
