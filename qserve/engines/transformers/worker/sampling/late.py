"""Which rows of a step sit out, because the masks of their next tokens are not there yet.

A grammar whose masks are expensive holds up its own answer and no other. Who sits out keeps its place: its token is
drawn in a later step from the same scores, by the same random number.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, wait

from qserve.engines.transformers.worker.sampling.grammar_state import THREADS, GrammarState
from qserve.engines.transformers.worker.sampling.sampler import SequenceSampler

__all__ = ["late_rows", "wait_for_one"]

# Of a step in which others go on: a usual mask is a matter of 0.1 ms, and a step without its row costs its client more.
_GRACE_S = 0.002
# Where nobody goes on: short, since somebody may come.
_NOBODY_S = 0.02
_NONE: frozenset[int] = frozenset()


def late_rows(samplers: Sequence[SequenceSampler], *, is_all: bool = True) -> Collection[int]:
    """The rows that are not drawn in this step; the others are drawn without waiting.

    Waits shortly, once for a mask and within its request's patience; where all rows are late, and are all that there
    is (`is_all`), for the first.
    """
    late = [row for row, one in enumerate(samplers) if not (one.is_free or one.is_ready)]
    if not late:
        return _NONE
    if is_all and len(late) == len(samplers):
        wait_for_one(samplers)
    else:
        _be_patient([state for row in late if (state := samplers[row].grammar_state) is not None])
    late = [row for row in late if not samplers[row].is_ready]
    if late:
        THREADS.preempt()
    return frozenset(late)


def wait_for_one(samplers: Iterable[SequenceSampler]) -> None:
    """Until one of them need not wait any longer, but not for long: somebody else may come."""
    states = [state for one in samplers if (state := one.grammar_state) is not None]
    pending = [mask for one in states if (mask := one.pending) is not None]
    if pending and not wait(pending, _NOBODY_S, FIRST_COMPLETED).done:
        THREADS.preempt()


def _be_patient(late: Sequence[GrammarState]) -> None:
    waited_for = [one for one in late if not one.is_missed and one.queue.patience_s > 0.0]
    for one in late:
        one.is_missed = True
    if not waited_for:
        return
    began_s = time.monotonic()
    pending = [mask for one in waited_for if (mask := one.pending) is not None]
    wait(pending, min(_GRACE_S, max(one.queue.patience_s for one in waited_for)))
    waited_s = time.monotonic() - began_s
    for queue in {one.queue for one in waited_for}:
        queue.patience_s -= waited_s
