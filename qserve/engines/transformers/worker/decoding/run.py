"""A run: the same sequences decode step after step, and the next forward is launched before the last tokens are read.

A step launches its forward, whose input is what the draw before it left on the device. While that computes, the tokens
of the draw are read, are delivered, and move grammars and penalties on; then the draw over the new logits is launched.
So the device never waits for the host, and the host once a step, for tokens that are there already. A sequence that
has ended is found one forward late: what that computes for it is dropped.

A sequence whose grammar is late (`sampling.late`) sits out: the next forwards read its last token again, at the same
place, and make the same keys and logits, until its next token can be drawn. Where all are late no forward is launched.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Protocol

import torch

from qserve.engines.transformers.worker.batching.batcher import Deliveries, Sequence
from qserve.engines.transformers.worker.batching.library_rows import LibraryRow, LibraryRows
from qserve.engines.transformers.worker.sampling.batch import BatchSampler, Drawn, deliveries
from qserve.engines.transformers.worker.sampling.late import late_rows
from qserve.model.transfers import upload

__all__ = ["DecodeRun", "RunForwards"]


class RunForwards(Protocol):
    """What computes the steps of runs: on a card `forward.Forwards`, on a CPU `compiled.CompiledForwards`."""

    def buffers(self, num_rows: int, num_pages: int) -> Any:
        """What a run of so many sequences keeps, of at most so many pages each (`buffers.DecodeBuffers`)."""

    def __call__(self, buffers: Any, /) -> torch.Tensor:
        """Logits [rows, vocab] in float32 after one token of each row; the positions have moved on."""
        ...


class DecodeRun:
    """Belongs to the generating thread.

    Attributes:
        in_step: the sequences of its last step, and how many of their tokens were cached.
        is_over: it has taken its last step, and the library's books are written.

    """

    def __init__(
        self,
        forwards: RunForwards,
        books: LibraryRows,
        rows: list[LibraryRow],
        sampler: BatchSampler,
        deliver: Callable[[Deliveries], None],
    ) -> None:
        self._forwards = forwards
        self._books, self._sampler, self._deliver = books, sampler, deliver
        self._rows = rows
        self._drawn: Drawn | None = None
        self._kept: torch.Tensor | None = None  # logits that nobody could be drawn from yet
        self._num_steps_left = self._least_left()
        tables = [books.pages(row) for row in rows]
        self._buffers = forwards.buffers(len(rows), max(len(table) for table in tables) + 1)
        self._buffers.fill([row.last_token for row in rows], [row.position for row in rows], tables)
        self.in_step: list[tuple[Sequence, int]] = []
        self.is_over = False

    def can_go_on(self) -> bool:
        """Whether every sequence has a place for its next key; takes pages where one is full.

        Not where all are late, and others might run.
        """
        if not self._num_steps_left or (self._kept is not None and self._books.has_waiting):
            return False
        new = []
        for index, row in enumerate(self._rows):
            if row.position < len(row.blocks) * self._books.page_tokens:
                continue
            grown = self._books.grow(row)
            if grown is None or len(row.blocks) > self._buffers.block_table.shape[1]:
                return False
            new.append((index, *grown))
        if new:
            self._buffers.set_pages(new)
        return True

    @torch.no_grad()
    def step(self) -> None:
        """A forward of all, and a draw of those that go on."""
        self.in_step = [(row.sequence, row.position) for row in self._rows]
        logits = self._forwards(self._buffers)[: len(self._rows)] if self._kept is None else self._kept
        self._kept = None
        for row in self._rows:
            row.position += 1
        self._take()
        going_on = [index for index, row in enumerate(self._rows) if not row.sequence.is_complete]
        if len(going_on) < len(self._rows):
            self._go_on_without_the_ended(going_on)
            logits = logits[upload(going_on, torch.long, logits.device)]
        late: Collection[int] = ()
        if going_on:
            samplers = [row.sequence.sampler for row in self._rows]
            late = late_rows(samplers)
            for index in late:
                self._rows[index].position -= 1
            if len(late) == len(self._rows):
                self._kept = logits
            else:
                self._drawn = self._sampler.draw(samplers, logits, late=late)
                self._num_steps_left = self._least_left(late) if late else self._num_steps_left - 1
        if self.is_over:
            self.end()
        elif self._drawn is not None:
            self._buffers.move_on(self._drawn.tokens, late)

    def _least_left(self, late: Collection[int] | None = None) -> int:
        """Steps until the first has all that it may have; `late`: those that are not in the draw at hand."""
        return min(
            row.sequence.max_tokens - len(row.sequence.sampled_ids) - (late is not None and index not in late)
            for index, row in enumerate(self._rows)
        )

    def end(self) -> None:
        """The last draw is read and delivered, and the library's books are written."""
        self._take()
        for row in self._rows:
            self._books.write_back(row)
        self._rows, self.is_over = [], True

    def _take(self) -> None:
        """Deliver what was drawn last."""
        if self._drawn is None:
            return
        drawn, self._drawn = self._drawn, None
        self._deliver(deliveries([row.sequence for row in self._rows], drawn))

    def _go_on_without_the_ended(self, going_on: list[int]) -> None:
        """The run ends with this step: those that have ended give their places to others."""
        for index, row in enumerate(self._rows):
            if index not in going_on:
                row.position -= 1  # the forward that found it ended too late: its key is not the library's
                self._books.write_back(row)
        self._rows = [self._rows[index] for index in going_on]
        self.is_over = True
