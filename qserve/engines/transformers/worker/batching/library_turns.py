"""Who is in the library's batch: it schedules what it is given, and is given what fits, in fair order (`turns`).

The library's own queue is empty between two steps: what it did not take is ours again. So the order is decided anew
for each step, also while prompts of many sequences are read, and who has to give pages back is decided here as well.
"""

from __future__ import annotations

from collections.abc import Callable

from qserve.engines.transformers.worker.batching.batcher import Sequence
from qserve.engines.transformers.worker.batching.continuous import LibraryLoop
from qserve.engines.transformers.worker.batching.library_stages import Stages
from qserve.engines.transformers.worker.batching.turns import Turns

__all__ = ["LibraryTurns"]


class LibraryTurns:
    """For the generating thread alone."""

    def __init__(self, library: LibraryLoop, stages: Stages, fail: Callable[[Sequence, Exception], None]) -> None:
        """`stages`: of the library's steps; `fail` is told of a sequence that the library does not take."""
        self._library, self._stages, self._fail = library, stages, fail
        self._turns: Turns[Sequence] = Turns(library.max_num_seqs, lambda one: one.turn)
        self._is_changed = False  # since nobody else could be let in
        self._is_full = False  # pages ran out, and nobody has ended since

    def __len__(self) -> int:
        """Sequences that wait."""
        return len(self._turns)

    def put(self, sequence: Sequence) -> None:
        """It waits for its turn."""
        self._turns.put(sequence)
        self._is_changed = True

    def end(self, sequence: Sequence) -> None:
        """It has ended, or nobody waits for it."""
        self._turns.end(sequence)
        self._is_changed, self._is_full = True, False

    def clear(self) -> None:
        """The library has forgotten all."""
        self._turns.clear()
        self._is_changed = self._is_full = False

    def run_alone(self, sequence: Sequence) -> bool:
        """It runs, whoever waits; whether the library takes it."""
        self._turns.put(sequence)
        return self._begin(sequence)

    def admit(self) -> None:
        """Before a step: let in whose turn it is."""
        self._take_back()
        if self._library.num_starved:
            self._make_room()
        if self._is_changed or not self._turns.running:
            self._is_changed = False
            self._let_in()

    def _take_back(self) -> None:
        """What the last step has not begun: there was no more room in it, or there were no pages."""
        left = [one for one in self._library.withdrawn() if one in self._turns.running]
        for one in reversed(left):
            self._turns.preempt(one)
        if not left:
            return
        self._is_changed = self._is_changed or self._step_was_full
        following = self._turns.next()
        if not self._is_changed and following is not None:
            victim = self._turns.yields_to(following)
            if victim is not None:
                self._preempt(victim)
                self._is_changed = True

    @property
    def _step_was_full(self) -> bool:
        """Whether the last step read as many tokens as one may."""
        return sum(one.num_tokens for one in self._stages.in_step()) >= self._library.max_step_tokens

    def _let_in(self) -> None:
        is_urgent = False
        while (following := self._turns.next()) is not None:
            victim = self._turns.yields_to(following)
            if self._turns.has_place(following):
                if self._is_full and victim is None and self._turns.running:
                    break
                is_urgent = is_urgent or victim is not None
                self._begin(following)
            elif victim is not None:
                self._preempt(victim)
            else:
                break
        self._library.keeps_margin = not is_urgent

    def _begin(self, sequence: Sequence) -> bool:
        """Whether the library takes it: what fails here is the sequence's own fault."""
        self._turns.begin(sequence)
        try:
            self._library.add(sequence)
        except Exception as error:
            self._fail(sequence, error)
            return False
        return True

    def _preempt(self, victim: Sequence) -> None:
        """It waits again, and is read anew from its tokens: most of its pages are found where it left them."""
        self._stages.finish_run()  # somebody may end in it
        if victim in self._turns.running:
            self._library.take_out(victim.request_id)
            self._turns.preempt(victim)

    def _make_room(self) -> None:
        """Some could not take the last step, as there were no pages for them: others give theirs."""
        self._library.evict()
        while len(self._turns.running) > 1 and not self._library.can_store_starved():
            victim = self._turns.victim()
            assert victim is not None, "some run"
            self._preempt(victim)
            self._is_full = True

    def offload(self) -> bool:
        """In the place of the library's own choice, which is whoever came last; whether there may be room now."""
        is_evicted = self._library.evict()
        if self._library.num_starved < self._library.num_active or is_evicted:
            return is_evicted or bool(self._library.num_starved)  # others take a step, and `_make_room` follows
        victim = self._turns.victim()
        if victim is None or len(self._turns.running) < 2:
            return False
        self._preempt(victim)
        self._is_full = True
        return True
