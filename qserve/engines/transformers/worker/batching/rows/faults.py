"""What happens where a stage of the row batcher fails: the sequence at fault fails, the others are prefilled again.

States of some layers have moved on by then and those of others have not, so nothing of a failed step is kept but the
tokens. Whose the failure is, is found out by `isolation`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from qserve.engines.transformers.worker.batching.batcher import Deliveries, Sequence, failure_of, undelivered_of
from qserve.engines.transformers.worker.batching.isolation import Isolation
from qserve.engines.transformers.worker.batching.queues import Arrivals
from qserve.engines.transformers.worker.batching.rows.scheduler import RowScheduler
from qserve.model.out_of_memory import is_broken_device

__all__ = ["FaultTolerantRows"]

_log = logging.getLogger("qserve.worker")


class FaultTolerantRows:
    """Around the stages of a step, for the generating thread alone.

    Attributes:
        is_prefill_stage: whether a prompt is read now; else all rows decode.
    """

    def __init__(self, scheduler: RowScheduler, deliver: Callable[[Deliveries], None]) -> None:
        self.is_prefill_stage = False
        self._scheduler = scheduler
        self._deliver = deliver
        self._isolation = Isolation()
        self._cancelled: set[str] = set()

    @property
    def num_deferred(self) -> int:
        """Sequences that wait until it is known which of them makes steps fail."""
        return len(self._isolation)

    @property
    def is_busy(self) -> bool:
        """Whether there is a step to take."""
        return bool(self._scheduler.everybody or self._isolation.is_active)

    def take_in(self, arrivals: Arrivals) -> None:
        """Queue who came, and forget who left; while somebody runs alone newcomers are held back."""
        for sequence in arrivals.submitted:
            self._put(sequence)
        self._cancelled |= arrivals.cancelled  # kept until it is done: a failure comes back to it
        gone = self._cancelled
        self._isolation.forget(gone)
        self._scheduler.drop(gone)
        self._cancelled = set()
        if self._isolation.is_active and not self._scheduler.everybody:
            self._run_next_alone()  # the one that ran alone has gone

    def _put(self, sequence: Sequence) -> None:
        if self._isolation.is_active:
            self._isolation.hold(sequence)
            return
        try:
            self._scheduler.queue(sequence)
        except Exception as error:  # it failed where no other took part
            self._deliver([(sequence, failure_of(sequence, error))])

    def guarded(self, stage: Callable[[], None]) -> None:
        """Take a stage of a step; where it raises, the sequence at fault fails and the others are prefilled again.

        Raises the error where nothing can run any more.
        """
        try:
            stage()
        except Exception as error:
            if is_broken_device(error):
                raise
            failure = error.with_traceback(None)  # the traceback holds the step's tensors
        else:
            if self._isolation.has_passed:
                self._run_next_alone()
            return
        self._recover(failure)

    def _recover(self, error: Exception) -> None:
        scheduler, rows = self._scheduler, self._scheduler.everybody
        self._deliver(undelivered_of(row.sequence for row in rows))
        everybody = [row.sequence for row in rows if not row.sequence.is_complete]
        everybody = [one for one in everybody if one.request_id not in self._cancelled]
        prefilled = scheduler.prefilling if self.is_prefill_stage else None
        joining = scheduler.waiting[:1] if self.is_prefill_stage or not scheduler.rows else []
        at_fault = [prefilled] if prefilled else [*scheduler.rows, *joining]
        known = [row.sequence for row in at_fault if row.sequence in everybody]
        is_all, involved = len(known) == len(at_fault), known or everybody
        self._clear()
        others = [one for one in everybody if one not in involved]
        for one in self._isolation.failed(involved, others, is_all=is_all):
            self._deliver([(one, failure_of(one, error))])
        if self._isolation.is_active:
            _log.warning("a step of %d sequences failed (%s); running them one by one", len(involved), error)
        self._run_next_alone()

    def _run_next_alone(self) -> None:
        """The next suspect; all that were held back, when there is none left."""
        self._clear()
        self._isolation.passed()
        following = self._isolation.next()
        for sequence in self._isolation.release() if following is None else [following]:
            self._scheduler.queue(sequence)

    def _clear(self) -> None:
        """Nothing runs and nothing waits."""
        self._scheduler.clear()
        self._cancelled = set()
