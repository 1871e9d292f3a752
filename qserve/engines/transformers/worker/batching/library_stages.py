"""The three stages of a step of the library's loop: its own, and what may stand in their place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from qserve.engines.transformers.worker.batching.batcher import Sequence
from qserve.engines.transformers.worker.batching.library_callbacks import Sampling, not_drawn, sequence_of

__all__ = ["LibraryStages", "LoopStages", "Stages", "StepEntry"]


class StepEntry(NamedTuple):
    """A sequence in the step at hand: how many of its tokens are computed, after how many that are cached."""

    sequence: Sequence
    num_tokens: int
    num_cached: int


class Stages(Protocol):
    """The stages, which may raise, and what they know of the step."""

    def prepare(self) -> bool:
        """Whether there is a step to take."""
        ...

    def step(self, model: Any) -> None:
        """Forward and sampling."""

    def update(self) -> None:
        """The library's bookkeeping of the step."""

    def in_step(self) -> list[StepEntry]:
        """Those that are in the step at hand, in order."""
        ...

    def finish_run(self) -> None:
        """One of those that run is about to leave: whatever was drawn is told, and the library's books are written."""

    def drop(self) -> None:
        """The library is about to forget all that run; what was drawn and not told is drawn again."""


class LoopStages(Protocol):
    """What the library's loop runs; none may raise, or its thread ends."""

    def prepare(self) -> bool:
        """Whether there is a step to take."""
        ...

    def step(self, model: Any) -> None:
        """Forward and sampling."""

    def update(self) -> None:
        """The library's bookkeeping of the step, and the ends of sequences."""

    def offload(self) -> bool:
        """The pool holds no more: free pages; whether there may be room now."""
        ...


class LibraryStages:
    """The library's own, without tokens that were not drawn (`Stages`)."""

    def __init__(self, processor: Any, sampling: Sampling) -> None:
        """`processor`: the library's, whose stages nothing has replaced yet."""
        self._processor, self._sampling = processor, sampling
        self._update: Callable[[], None] = processor.update_batch
        self.prepare: Callable[[], bool] = processor.prepare_next_batch
        self.step: Callable[[Any], None] = sampling.around(processor._generation_step)

    def update(self) -> None:
        """See `Stages`."""
        late = self._sampling.late
        if not late:
            self._update()
            return
        processor = self._processor
        requests = processor.inputs_and_outputs.requests_in_batch
        with not_drawn(requests, late, processor.cache):
            self._update()
        if len(late) == len(requests) and processor.scheduler.waiting_requests:
            # The library lets in nobody after a preemption, and keeps old blocks, until somebody ends.
            processor.scheduler.block_new_requests = False
            processor.cache.evict_cached_blocks()

    def in_step(self) -> list[StepEntry]:
        """See `Stages`."""
        futures = self._processor.inputs_and_outputs.requests_in_batch
        return [StepEntry(sequence_of(one.state), one.query_length, one.state.position_offset) for one in futures]

    def finish_run(self) -> None:
        """Each of its steps is told at once."""

    def drop(self) -> None:
        """It keeps nothing beside its books."""
