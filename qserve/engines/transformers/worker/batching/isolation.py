"""Which sequence makes a step fail: those that shared it run one at a time, until the one at fault is found.

An exception in a forward over many sequences does not say which of them caused it. A sequence that fails alone, and
again when it is run once more, is at fault: it fails, and the others continue together from the tokens that they have.
Where each takes a few steps alone and none fails, all continue together. If their steps fail again, the fault needs a
state that a few steps alone don't reach: each then runs alone to its end, where it can fail nothing but itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from qserve.engines.transformers.worker.batching.batcher import Sequence

__all__ = ["Isolation"]

# The first comes from prefilling the prompt, the second from decoding: both kinds of steps are taken alone.
_TOKENS_ALONE = 2
_SHARED_FAILURES_UNTIL_ITS_END = 2
# A step that may have held other sequences proves less, so it is tried once more.
_TRIES_ALONE, _TRIES_NOT_ALONE = 2, 3


class Isolation:
    """Belongs to one generating thread, which asks it for the sequence to run while `is_active`."""

    def __init__(self) -> None:
        self._suspects: deque[Sequence] = deque()
        self._waiting: deque[Sequence] = deque()
        self._alone: Sequence | None = None
        self._num_sampled = 0
        self._tried: tuple[Sequence, int] | None = None  # the one that failed alone, and how many tokens it had
        self._num_tries = 0

    def __len__(self) -> int:
        """Sequences that are held back."""
        return len(self._suspects) + len(self._waiting)

    @property
    def is_active(self) -> bool:
        """Whether at most one sequence may run: the one of `next`."""
        return self._alone is not None or bool(self._suspects)

    @property
    def has_passed(self) -> bool:
        """Whether the sequence that runs alone has shown that it is not at fault."""
        one = self._alone
        if one is None or one.is_complete:
            return one is not None
        is_to_end = one.num_shared_failures >= _SHARED_FAILURES_UNTIL_ITS_END
        return not is_to_end and len(one.sampled_ids) >= self._num_sampled + _TOKENS_ALONE

    def failed(self, involved: list[Sequence], others: Iterable[Sequence], *, is_all: bool) -> list[Sequence]:
        """A step of `involved` has failed: those of them that must fail now. The rest, and `others`, are held back.

        `is_all`: nothing else was in the step. Otherwise not even a single one is known to be at fault.
        """
        self._waiting.extendleft(reversed([one for one in others if one is not self._alone]))
        self._alone = None
        if len(involved) == 1:
            return self._failed_alone(involved[0], _TRIES_ALONE if is_all else _TRIES_NOT_ALONE)
        for one in involved:
            one.num_shared_failures += 1
        # Most faults show in the first step that a sequence takes.
        self._suspects.extend(sorted(involved, key=lambda one: len(one.sampled_ids)))
        return []

    def _failed_alone(self, one: Sequence, most_tries: int) -> list[Sequence]:
        tried, num_sampled = self._tried or (None, 0)
        is_again = tried is one and len(one.sampled_ids) < num_sampled + _TOKENS_ALONE
        self._num_tries = self._num_tries + 1 if is_again else 1
        if self._num_tries < most_tries:
            self._tried = one, len(one.sampled_ids)
            self._suspects.appendleft(one)
            return []
        self._tried, self._num_tries = None, 0
        self._release_suspects()
        return [one]

    def _release_suspects(self) -> None:
        """The sequence at fault is known: the failed steps no longer count against the others."""
        self._waiting.extendleft(reversed(self._suspects))
        self._suspects.clear()
        for one in self._waiting:
            one.num_shared_failures = 0

    def holds(self, sequence: Sequence) -> bool:
        """Whether it is held back."""
        return sequence in self._suspects or sequence in self._waiting

    def hold(self, sequence: Sequence) -> None:
        """A sequence that came meanwhile."""
        self._waiting.append(sequence)

    def forget(self, request_ids: set[str]) -> None:
        """Drop the sequences of these requests, which were cancelled."""
        self._suspects = deque(one for one in self._suspects if one.request_id not in request_ids)
        self._waiting = deque(one for one in self._waiting if one.request_id not in request_ids)

    def next(self) -> Sequence | None:
        """The next to run alone; the one before has passed, or is gone. None when there is none left."""
        self._alone = self._suspects.popleft() if self._suspects else None
        if self._alone is not None:
            self._num_sampled = len(self._alone.sampled_ids)
        return self._alone

    def passed(self) -> None:
        """The sequence that ran alone is not at fault: it waits behind the others that are held back."""
        if self._alone is not None and not self._alone.is_complete:
            self._waiting.append(self._alone)
        self._alone = None

    def release(self) -> list[Sequence]:
        """All that were held back, when none has to run alone any more."""
        released, self._waiting = list(self._waiting), deque()
        return released
