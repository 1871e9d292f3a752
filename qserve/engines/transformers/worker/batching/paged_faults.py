"""What happens where a step of the library's loop fails: the sequence at fault fails, the others are prefilled again.

An exception in a step would end the library's thread, and with it every request. So the stages of a step are wrapped:
where memory runs out the sequence that asked for most of it fails, with any other error the one that causes it
(`isolation`), and the others are prefilled again from their tokens.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from qserve.engines.transformers.worker.batching.batcher import Deliveries, Sequence, failure_of, undelivered_of
from qserve.engines.transformers.worker.batching.continuous import LibraryLoop
from qserve.engines.transformers.worker.batching.isolation import Isolation
from qserve.engines.transformers.worker.batching.library_callbacks import Deliver
from qserve.engines.transformers.worker.batching.library_stages import Stages
from qserve.engines.transformers.worker.batching.library_turns import LibraryTurns
from qserve.engines.transformers.worker.batching.queues import PolledInbox
from qserve.model.failures import SequenceFailed
from qserve.model.out_of_memory import OutOfMemory, free_what_failed, is_broken_device, is_out_of_memory

__all__ = ["FaultTolerantStages"]

_log = logging.getLogger("qserve.worker")
_LEAST_STEP_TOKENS = 64


class FaultTolerantStages:
    """See `LoopStages`."""

    def __init__(
        self, library: LibraryLoop, arrivals: PolledInbox, deliver: Deliver, stages_of: Callable[[Deliver], Stages]
    ) -> None:
        """`stages_of`: makes those that are wrapped, which may deliver what is drawn between two of the library's
        steps by the function that it is given.
        """
        self._library = library
        self._arrivals = arrivals
        self._deliver = deliver
        self._isolation = Isolation()
        self._stages = stages_of(self._deliver_of_run)
        self._turns = LibraryTurns(library, self._stages, self._fail)
        self._known: dict[str, Sequence] = {}  # taken in, and not ended

    @property
    def num_deferred(self) -> int:
        """Sequences that wait for their turn, or until it is known which of them makes steps fail."""
        return len(self._turns) + len(self._isolation)

    def prepare(self) -> bool:
        """Whether there is a step to take."""
        failure: Exception | None = None
        try:
            self._take_in()
            if not self._isolation.is_active:
                self._turns.admit()
            elif not self._library.has_requests:
                self._run_next_alone()
            is_available = bool(self._stages.prepare())
            if is_available:
                return True
        except Exception as error:
            failure, is_available = error.with_traceback(None), False
        if failure is not None:
            self._recover(failure, self._library.scheduled())
        if failure is not None or self._isolation.is_active:
            self._library.wake()
        return is_available

    def step(self, model: Any) -> None:
        """Forward and sampling."""
        try:
            self._stages.step(model)
            return
        except Exception as error:
            failure = error.with_traceback(None)  # the traceback holds the step's tensors
        free_what_failed()
        if is_out_of_memory(failure) and not self._isolation.is_active:
            self._give_up_largest(failure)
        else:
            self._recover(failure, self._in_step())

    def update(self) -> None:
        """The library's own notes on the step, and the ends of sequences."""
        involved = self._in_step()
        failure: Exception | None = None
        try:
            self._stages.update()
        except Exception as error:
            failure = error.with_traceback(None)
        for one in involved:
            if one.is_complete:
                self._has_ended(one)
            if one.has_failed:  # by its own sampler, of which the library knows nothing
                self._library.cancel(one.request_id)
        if failure is not None:
            self._recover(failure, involved)
        elif self._isolation.has_passed:
            self._run_next_alone()

    def offload(self) -> bool:
        """Whether there may be room now (`LibraryTurns`)."""
        return self._turns.offload()

    def _deliver_of_run(self, deliveries: Deliveries) -> None:
        """Those that have ended in it are known no more."""
        self._deliver(deliveries)
        for one, _ in deliveries:
            if one.is_complete:
                self._has_ended(one)

    def _has_ended(self, sequence: Sequence) -> None:
        self._known.pop(sequence.request_id, None)
        self._turns.end(sequence)

    def _take_in(self) -> None:
        num_cancelled = len(self._arrivals.cancelled)  # may name a sequence that is submitted by now
        while self._arrivals.submitted:
            sequence = self._arrivals.submitted.popleft()
            self._known[sequence.request_id] = sequence
            try:
                self._put(sequence)
            except Exception as error:
                self._fail(sequence, error)
        for _ in range(num_cancelled):
            request_id = self._arrivals.cancelled.popleft()
            self._isolation.forget({request_id})
            if (known := self._known.get(request_id)) is not None:
                self._has_ended(known)
                self._library.cancel(request_id)

    def _put(self, sequence: Sequence) -> None:
        if self._isolation.is_active:
            self._isolation.hold(sequence)
        else:
            self._turns.put(sequence)

    def _fail(self, sequence: Sequence, error: Exception) -> None:
        """It failed where no other took part. Raises the error where nothing can run any more."""
        if is_broken_device(error):
            raise error
        self._has_ended(sequence)
        self._deliver([(sequence, self._as_failure(sequence, error.with_traceback(None)))])

    def _in_step(self) -> list[Sequence]:
        return [entry.sequence for entry in self._stages.in_step()]

    def _recover(self, error: Exception, involved: list[Sequence]) -> None:
        """The library forgets all requests. The sequence at fault fails, the others are prefilled again.

        Raises the error where nothing can run any more.
        """
        if is_broken_device(error):
            raise error
        self._hand_over(involved)
        known = [one for one in involved if one.request_id in self._known and not one.is_complete]
        is_all, involved = bool(known) and known == involved, known or list(self._known.values())
        others = [one for one in self._known.values() if one not in involved and not self._isolation.holds(one)]
        self._clear()
        for one in self._isolation.failed(involved, others, is_all=is_all):
            self._fail(one, error)
        if self._isolation.is_active:
            _log.warning("a step of %d sequences failed (%s); running them one by one", len(involved), error)
        self._run_next_alone()

    def _hand_over(self, sequences: list[Sequence]) -> None:
        """What was drawn is told, and not drawn again."""
        self._deliver(undelivered_of(sequences))
        for one in sequences:
            if one.is_complete:
                self._has_ended(one)

    @staticmethod
    def _as_failure(sequence: Sequence, error: Exception) -> SequenceFailed:
        if is_out_of_memory(error):
            return OutOfMemory.while_doing(f"running {sequence.num_tokens} tokens alone", error)
        return failure_of(sequence, error)

    def _run_next_alone(self) -> None:
        """The next suspect; all that were held back, when there is none left."""
        self._hand_over(self._library.scheduled())
        self._stages.drop()
        self._library.finish_running()
        self._turns.clear()
        self._isolation.passed()
        while (following := self._isolation.next()) is not None:
            if self._turns.run_alone(following):
                return
        for sequence in self._isolation.release():
            if sequence.request_id in self._known:
                self._turns.put(sequence)

    def _clear(self) -> None:
        self._stages.drop()
        self._library.clear()
        self._turns.clear()

    def _give_up_largest(self, error: Exception) -> None:
        """The sequence with most tokens in the step (then, the longest) fails; the others are prefilled again."""
        entries = self._stages.in_step()
        largest = max(entries, key=lambda entry: (entry.num_tokens, entry.num_cached))
        failed = largest.sequence
        others = [one for one in self._known.values() if one is not failed]
        self._clear()
        for one in others:
            self._turns.put(one)
        self._known.pop(failed.request_id, None)
        self._ask_for_less(sum(entry.num_tokens for entry in entries), len(entries))
        what = "decoding" if largest.num_tokens == 1 else f"prefilling {largest.num_tokens} tokens of its prompt"
        if len(entries) > 1:
            what += f" with {len(entries) - 1} other sequences"
        self._deliver([(failed, OutOfMemory.while_doing(what, error))])

    def _ask_for_less(self, num_tokens: int, num_sequences: int) -> None:
        """The others are prefilled all at once, which would be too much once more: later steps take half as much."""
        library = self._library
        least = max(_LEAST_STEP_TOKENS, library.max_num_seqs)
        if num_tokens > num_sequences and library.max_step_tokens > least:
            library.max_step_tokens = max(least, min(library.max_step_tokens, num_tokens) // 2)
            _log.warning(
                "no memory for a step of %d tokens; from now on a step has at most %d. Serve with a lower "
                "--max-num-batched-tokens",
                num_tokens,
                library.max_step_tokens,
            )
