"""Runs of decoding steps on a CPU: the same sequences step after step, by compiled layers, without the library's lists.

The library schedules, lists the place of every key and takes an argmax of its own in each step: milliseconds of Python,
where a step of one stream takes some twenty. Here tables stay from step to step, and a step is one call for the layers,
the head, and a draw. Nothing is launched ahead: tokens are known as soon as they are drawn, and those who wait for them
are told while the next step's layers compute, when nobody needs the interpreter.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from qserve.engines.transformers.kernels.decode_sizes import table_width_of
from qserve.engines.transformers.worker.batching.batcher import Deliveries, GraphMemory
from qserve.engines.transformers.worker.batching.library_rows import LibraryRows
from qserve.engines.transformers.worker.decoding.run import DecodeRun
from qserve.engines.transformers.worker.sampling.batch import deliveries
from qserve.engines.transformers.worker.sampling.late import late_rows
from qserve.engines.transformers.worker.sampling.likeliest import only_likeliest
from qserve.engines.transformers.worker.sampling.sampler import SequenceSampler
from qserve.model.cpu.layers import CompiledLayers, Reads

__all__ = ["CompiledForwards", "CompiledRun", "CompiledTables"]

_NO_TEXTS = torch.empty(0, 5, dtype=torch.int64)


@dataclass(eq=False)
class CompiledTables:
    """What the steps of a run read, kept from one to the next.

    Attributes:
        tokens: int64 [rows], what the next forward reads.
        positions: int64 [rows], where.
        places: int64 [rows, keys], the row of the cache of each key that a sequence has or may have.
        spans: int64 [rows, 2], where the keys of each begin and end in `places`.
        block_table: of pages that fit, [rows, pages]; its shape alone is read.
        page_tokens: of a page.
        samplers: of the rows of the next forward; a head may leave out what none of them can draw.
        of_prompts: rows that read the last token of a prompt again, whose first mask was late: as a prompt is read.

    """

    tokens: torch.Tensor
    positions: torch.Tensor
    places: torch.Tensor
    spans: torch.Tensor
    block_table: torch.Tensor
    page_tokens: int
    samplers: list[SequenceSampler] = field(default_factory=list)
    of_prompts: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, num_rows: int, num_pages: int, page_tokens: int) -> CompiledTables:
        """For so many sequences, of at most so many pages each."""
        tokens, positions = torch.zeros(2, num_rows, dtype=torch.int64)
        places = torch.zeros(num_rows, num_pages * page_tokens, dtype=torch.int64)
        spans = torch.zeros(num_rows, 2, dtype=torch.int64)
        return cls(tokens, positions, places, spans, torch.empty(num_rows, num_pages, device="meta"), page_tokens)

    def fill(self, tokens: Sequence[int], positions: Sequence[int], tables: Sequence[Sequence[int]]) -> None:
        """For sequences with these last tokens, their positions and pages."""
        self.tokens.copy_(torch.tensor(tokens))
        self.positions.copy_(torch.tensor(positions))
        self.set_pages([(row, place, page) for row, table in enumerate(tables) for place, page in enumerate(table)])
        self.spans[:, 0] = torch.arange(len(tokens)) * self.places.shape[1]
        self.spans[:, 1] = self.spans[:, 0] + self.positions + 1

    def set_pages(self, new: Sequence[tuple[int, int, int]]) -> None:
        """(row, place in its table, page) of pages that were added."""
        own = torch.arange(self.page_tokens)
        for row, place, page in new:
            self.places[row, place * self.page_tokens : (place + 1) * self.page_tokens] = page * self.page_tokens + own

    def written(self) -> torch.Tensor:
        """Where each row's new key lies, int64 [rows]."""
        return self.places.gather(1, self.positions[:, None])[:, 0]

    def texts_and_rows(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """`texts`, `rows` and `spans` of `Reads`."""
        every = torch.arange(len(self.tokens))
        if not self.of_prompts:
            return _NO_TEXTS, every, self.spans
        rows = torch.tensor(self.of_prompts)
        texts = torch.column_stack((rows, rows + 1, self.spans[rows], torch.full((len(rows),), -1)))
        others = every[~torch.isin(every, rows)]
        return texts, others, self.spans[others]

    def move_on(self, tokens: torch.Tensor, late: Collection[int] = ()) -> None:
        """The forward has read its tokens; these were drawn after them, but for those of `late` rows, which stay."""
        if late:
            stay = torch.zeros(len(tokens), dtype=torch.bool)
            stay[sorted(late)] = True
            self.tokens.copy_(torch.where(stay, self.tokens, tokens))
            self.positions += ~stay
            self.spans[:, 1] += ~stay
            return
        self.tokens.copy_(tokens)
        self.positions.add_(1)
        self.spans[:, 1] += 1


class CompiledForwards:
    """For one model and cache; belongs to the generating thread.

    Attributes:
        all_logits: of the last step, where some that a grammar may need were left out.
    """

    graph_memory = GraphMemory()
    """Nothing is captured."""

    def __init__(self, model: Any, layers: CompiledLayers, cache: Any, books: LibraryRows) -> None:
        """`layers`: of the model's body."""
        (allocator,) = cache.cache_allocators.values()
        views = allocator._kv_token_views
        self._caches = {index: (keys.flatten(1), values.flatten(1)) for index, (keys, values) in views.items()}
        self._layers, self._head, self._page_tokens = layers, model.get_output_embeddings(), books.page_tokens
        self.all_logits: Callable[[], torch.Tensor] | None = None

    def buffers(self, num_rows: int, num_pages: int) -> CompiledTables:
        """For so many sequences, of at most so many pages each, and some more."""
        return CompiledTables.of(num_rows, table_width_of(num_pages), self._page_tokens)

    def __call__(self, tables: CompiledTables, begun: Callable[[], None] = lambda: None) -> torch.Tensor:
        """Logits [rows, vocab] in float32 after one token of each row; `begun` as `CompiledLayers` has it."""
        torch.set_num_threads(1)  # as in other compiled steps: OpenMP's threads would spin where ours work
        reads = Reads(*tables.texts_and_rows(), tables.places, tables.written(), self._caches)
        states = self._layers(tables.tokens, tables.positions, reads, begun=begun)
        with only_likeliest(self._head, tables.samplers, at_first=True) as is_partial:
            logits: torch.Tensor = self._head(states)
        self.all_logits = (lambda: self._head(states).float()) if is_partial else None
        return logits.float()


class CompiledRun(DecodeRun):
    """Belongs to the generating thread. Its tokens are told while the next forward computes, or when it ends."""

    _forwards: CompiledForwards

    def __init__(self, *of: Any) -> None:
        super().__init__(*of)
        self._unreported: Deliveries = []

    @torch.no_grad()
    def step(self) -> None:
        """A forward of all, and a draw."""
        rows = self._rows
        self.in_step = [(row.sequence, row.position) for row in rows]
        samplers = self._buffers.samplers = [row.sequence.sampler for row in rows]
        self._buffers.of_prompts = [index for index, row in enumerate(rows) if row.reads_prompt]
        try:
            logits = self._forwards(self._buffers, self._tell) if self._kept is None else self._kept
        finally:
            self._tell()  # where it failed before its layers
        late = late_rows(samplers)
        self._kept = logits if len(late) == len(rows) else None
        if self._kept is not None:
            return
        drawn = self._sampler.draw(samplers, logits, self._forwards.all_logits, late)
        self._unreported = deliveries([row.sequence for row in rows], drawn)
        for index, row in enumerate(rows):
            row.position += index not in late
        self._num_steps_left = self._least_left() if late else self._num_steps_left - 1
        if any(row.sequence.is_complete for row in rows):
            self.end()
        else:
            self._buffers.move_on(drawn.tokens, late)

    def end(self) -> None:
        """The last tokens are told, and the library's books are written."""
        self._tell()
        super().end()

    def _tell(self) -> None:
        unreported, self._unreported = self._unreported, []
        if unreported:
            self._deliver(unreported)
