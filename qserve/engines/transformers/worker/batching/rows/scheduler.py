"""Which sequences are rows of the batch, which prompt is read next, and who holds which pages of the keys.

A sequence joins when it is its turn (`turns`) and there is a row for it, and pages for its prompt and for a step of the
others. When the pages run out, one of whoever has most rows is preempted: it is the next of its request again, and is
prefilled anew, with what it has drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from qserve.engines.transformers.kernels.kv_pages import PAGE_TOKENS
from qserve.engines.transformers.worker.batching.batcher import Sequence
from qserve.engines.transformers.worker.batching.rows.cache import Pages, RowCache
from qserve.engines.transformers.worker.batching.turns import Turns
from qserve.engines.transformers.worker.sampling.params import TokenChoice
from qserve.model.failures import SequenceFailed

if TYPE_CHECKING:
    import torch

__all__ = ["Row", "RowScheduler"]


@dataclass(eq=False)
class Row:
    """A sequence on its way. `tokens` are its prompt and what was drawn; the first `num_cached` are in the cache.

    `logits` [1, vocab] are kept where all are cached and nothing could be drawn from them yet: it sits out.
    """

    sequence: Sequence
    order: int
    tokens: list[int]
    num_cached: int = 0
    pages: list[int] = field(default_factory=list)
    logits: torch.Tensor | None = None

    @property
    def num_sampled(self) -> int:
        return len(self.tokens) - len(self.sequence.prompt_ids)

    def take(self, choice: TokenChoice) -> bool:
        """Append a token; whether it was the last."""
        self.tokens.append(choice.token_id)
        return choice.token_id in self.sequence.stop_token_ids or self.num_sampled >= self.sequence.max_tokens


class RowScheduler:
    """For the generating thread alone.

    Attributes:
        rows: those that decode, or sit out; row i of the batch is row i of every state.
        prefilling: the one whose prompt is being read; it stands after `rows` in the cache.
    """

    def __init__(
        self, cache: RowCache, num_rows: int, num_pages: int, fail: Callable[[Sequence, SequenceFailed], None]
    ) -> None:
        """`cache`: where keys and states lie; `fail` is told of sequences that no pool of this size can hold."""
        self._cache = cache
        self.rows: list[Row] = []
        self.prefilling: Row | None = None
        self._turns: Turns[Row] = Turns(num_rows, lambda row: row.sequence.turn)
        self._is_full = False  # pages ran out, and nobody has ended since
        self._pages = Pages(num_pages)
        self._fail = fail
        self._num_queued = 0

    @property
    def num_pages(self) -> int:
        return self._pages.num_pages

    @property
    def used_share(self) -> float:
        """Of the pages."""
        return 1.0 - self._pages.num_free / self._pages.num_pages

    @property
    def running(self) -> list[Row]:
        """Rows that hold pages."""
        return [*self.rows, *([self.prefilling] if self.prefilling else [])]

    @property
    def waiting(self) -> list[Row]:
        """Those that have yet to join, the next one first."""
        following = self._turns.next()
        first = [] if following is None else [following]
        return [*first, *(row for row in self._turns if row is not following)]

    @property
    def everybody(self) -> list[Row]:
        """Running and waiting."""
        return [*self.running, *self.waiting]

    def queue(self, sequence: Sequence) -> None:
        """Let it wait for a row."""
        self._turns.put(Row(sequence, self._num_queued, [*sequence.prompt_ids, *sequence.sampled_ids]))
        self._num_queued += 1

    def clear(self) -> None:
        """Nothing runs and nothing waits."""
        self.rows, self.prefilling = [], None
        self._turns.clear()
        self._pages = Pages(self._pages.num_pages)

    def drop(self, request_ids: Collection[str]) -> None:
        """Forget those that nobody waits for any more."""
        if not request_ids:
            return
        running = self.running
        for row in self.everybody:
            if row.sequence.request_id not in request_ids:
                continue
            if row in running:
                self.release(row)
            else:
                self._turns.end(row)

    def admit(self) -> Row | None:
        """The next prompt, if there is a row for it, and pages for it and for a step of the others."""
        while (row := self._turns.next()) is not None:
            needed, victim = Pages.needed_for(len(row.tokens) + 1), self._turns.yields_to(row)
            if self._turns.has_place(row) and self._has_pages(needed, is_urgent=victim is not None):
                return self._begun(row, needed)
            if victim is not None:
                self._preempt(victim)
            elif self.rows:
                return None
            else:
                self._turns.end(row)
                self._fail(row.sequence, self._too_long(row))
        return None

    def _has_pages(self, needed: int, *, is_urgent: bool) -> bool:
        if is_urgent or not self.rows:
            return needed <= self._pages.num_free
        return not self._is_full and needed + len(self.rows) <= self._pages.num_free

    def _begun(self, row: Row, needed: int) -> Row:
        self._turns.begin(row)
        self.prefilling = row  # first: whatever fails after it, the row is known
        row.pages = self._pages.take(needed)
        self._cache.assign(len(self.rows), row.pages)
        return row

    def prefilled(self) -> None:
        """The prompt that was read decodes from now on."""
        assert self.prefilling is not None, "a prompt was read"
        self.rows.append(self.prefilling)
        self.prefilling = None

    def sitting_out(self) -> list[Row]:
        """Rows that wait for their next tokens."""
        return [row for row in self.rows if row.logits is not None]

    def going_on(self) -> list[Row]:
        """Rows that take a step: the first of the batch, from now on."""
        waits = [row.logits is not None for row in self.rows]
        number = waits.count(False)
        behind = [index for index in range(number, len(waits)) if not waits[index]]
        for index, other in zip([index for index in range(number) if waits[index]], behind, strict=True):
            self._cache.exchange(index, other)
            self.rows[index], self.rows[other] = self.rows[other], self.rows[index]
        return self.rows[:number]

    def allocate_pages(self) -> None:
        """A page for every row whose next token needs one; where none is free one of whoever has most is preempted."""
        for row in sorted(self.rows, key=lambda row: row.order):
            while row in self.rows and Pages.needed_for(len(row.tokens)) > len(row.pages):
                if self._pages.num_free:
                    new = self._pages.take(1)
                    self._cache.assign(self.rows.index(row), new, start=len(row.pages))
                    row.pages += new
                else:
                    self._make_room()

    def release_all(self) -> Row:
        """After a step that failed half way: every row that decodes is to be read again, but the largest.

        That one is returned, released, and does not wait.
        """
        largest = max(self.rows, key=lambda row: len(row.tokens))
        for row in sorted(self.rows, key=lambda row: row.order, reverse=True):
            self.release(row)
            if row is not largest:
                self._turns.put(row, first=True)
        return largest

    def release(self, row: Row) -> None:
        """Give back its pages, and close the gap in the batch: rows that decode come first, then the one in prefill."""
        self._pages.give_back(row.pages)
        row.pages, row.num_cached, row.logits = [], 0, None
        self._turns.end(row)
        self._is_full = False
        if row is self.prefilling:
            self.prefilling = None
            return
        gap, last = self.rows.index(row), len(self.rows) - 1
        if gap != last:
            self._cache.move(last, gap)
            self.rows[gap] = self.rows[last]
        del self.rows[last]
        if self.prefilling is not None:
            self._cache.move(last + 1, last)

    def _make_room(self) -> None:
        """A row is preempted; the only one is too long for the pool."""
        victim = self._turns.victim()
        assert victim is not None, "a row wants a page"
        if len(self.running) > 1:
            self._preempt(victim)
            self._is_full = True
        else:
            self.release(victim)
            self._fail(victim.sequence, self._too_long(victim))

    def _preempt(self, row: Row) -> None:
        self.release(row)
        self._turns.put(row, first=True)

    def _too_long(self, row: Row) -> SequenceFailed:
        return SequenceFailed(
            f"the KV pool has room for {self.num_pages * PAGE_TOKENS} tokens, and this sequence has "
            f"{len(row.tokens) + 1}; serve with a larger --kv-cache-memory-bytes"
        )
