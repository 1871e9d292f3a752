"""Which sequence makes a step fail: those that shared it are run one at a time until each has taken a step alone.

An exception in a forward over many sequences does not say whose it is. The one that fails alone is the one; the others
continue from the tokens that they have. A step that fails only in company is no single sequence's fault: after
`_MAX_SHARED_FAILURES` such steps all that took part in each of them fail, so that this ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from qserve.engine.transformers.batching.batcher import Sequence

__all__ = ["Isolation"]

_MAX_SHARED_FAILURES = 3


class Isolation:
    """Belongs to one generating thread, which asks it whom to run while `is_active`."""

    def __init__(self) -> None:
        self._suspects: deque[Sequence] = deque()
        self._waiting: deque[Sequence] = deque()
        self._alone: Sequence | None = None
        self._num_drawn = 0

    def __len__(self) -> int:
        """Sequences that are held back."""
        return len(self._suspects) + len(self._waiting)

    @property
    def is_active(self) -> bool:
        """Whether at most one sequence may run: the one of `next`."""
        return self._alone is not None or bool(self._suspects)

    @property
    def has_passed(self) -> bool:
        """Whether the sequence that runs alone has drawn a token since it does."""
        return self._alone is not None and len(self._alone.drawn_ids) > self._num_drawn

    def failed(self, involved: list[Sequence], others: Iterable[Sequence], *, is_all: bool) -> list[Sequence]:
        """A step of `involved` has failed: those of them that must fail now. The rest, and `others`, are held back.

        `is_all`: nothing else was in the step. Otherwise not even a single one is known to be at fault.
        """
        self._waiting.extendleft(reversed([one for one in others if one is not self._alone]))
        was_active, self._alone = self.is_active, None
        if is_all and (was_active or len(involved) <= 1):
            return involved
        for one in involved:
            one.num_shared_failures += 1
        guilty = [one for one in involved if one.num_shared_failures >= _MAX_SHARED_FAILURES]
        self._suspects.extend(one for one in involved if one not in guilty)
        return guilty

    def holds(self, sequence: Sequence) -> bool:
        """Whether it is held back."""
        return sequence in self._suspects or sequence in self._waiting

    def hold(self, sequence: Sequence) -> None:
        """A sequence that came meanwhile."""
        self._waiting.append(sequence)

    def forget(self, request_ids: set[str]) -> None:
        """Nobody waits for these any more."""
        self._suspects = deque(one for one in self._suspects if one.request_id not in request_ids)
        self._waiting = deque(one for one in self._waiting if one.request_id not in request_ids)

    def next(self) -> Sequence | None:
        """The next to run alone; the one before has passed, or is gone. None when there is none left."""
        self._alone = self._suspects.popleft() if self._suspects else None
        if self._alone is not None:
            self._num_drawn = len(self._alone.drawn_ids)
        return self._alone

    def passed(self) -> None:
        """The sequence that ran alone is not at fault: it waits with the others, first come, first served."""
        if self._alone is not None and not self._alone.is_complete:
            self._waiting.append(self._alone)
        self._alone = None

    def release(self) -> list[Sequence]:
        """Everybody who was held back, when nobody has to run alone any more."""
        released, self._waiting = list(self._waiting), deque()
        return released
