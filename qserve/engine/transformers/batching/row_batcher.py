"""The row batcher: a batched decoding loop over the model's own cache, for models with linear attention.

transformers' continuous batching lays all sequences end to end in one row, which a recurrent state can't follow. Here
each running sequence is a row of a batch: one forward a step takes one token of every row, whatever their lengths. A
new prompt is prefilled alone, `max_num_batched_tokens` at a time, between the decode steps of the others; then it is
the next row. No prompt is padded, so its state and its keys are bit for bit those that it would have alone.

The pool of keys is shared in pages. A sequence joins when there is a row and there are pages for its prompt, first
come, first served. When the pages run out, the youngest is preempted: it goes back to the front of the queue
and is prefilled again, with what it has drawn.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from transformers import DynamicCache

from qserve.core.kv_pages import PAGE_TOKENS
from qserve.engine.transformers.attention import packed as attention
from qserve.engine.transformers.batching.batcher import (
    BatcherLoad,
    BatchLimits,
    Deliveries,
    Sequence,
    failure_of,
    undelivered_of,
)
from qserve.engine.transformers.batching.inbox import Arrivals, Inbox
from qserve.engine.transformers.batching.isolation import Isolation
from qserve.engine.transformers.batching.outboxes import Outboxes
from qserve.engine.transformers.batching.row_cache import Pages, RowCache
from qserve.engine.transformers.sampling.batch import choose_tokens
from qserve.engine.transformers.sampling.sampler import TokenChoice
from qserve.model import reference_kernels
from qserve.model.failures import SequenceFailed, WorkerStopping
from qserve.model.out_of_memory import (
    OutOfMemory,
    as_memory_error,
    free_what_failed,
    is_broken_device,
    is_out_of_memory,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["RowBatcher"]

_log = logging.getLogger("qserve.worker")
# Chunks of a prompt end where linear attention's own chunks end (64 in every kernel), so that a prompt in pieces is
# computed as it would be whole.
_CHUNK_MULTIPLE = 64


@dataclass(eq=False)
class _Row:
    """A sequence on its way. `tokens` are its prompt and what was drawn; the first `num_cached` are in the cache."""

    sequence: Sequence
    order: int
    tokens: list[int]
    num_cached: int = 0
    pages: list[int] = field(default_factory=list)

    @property
    def num_drawn(self) -> int:
        return len(self.tokens) - len(self.sequence.prompt_ids)

    def take(self, choice: TokenChoice) -> bool:
        """Append a token; whether it was the last."""
        self.tokens.append(choice.token_id)
        return choice.token_id in self.sequence.stop_token_ids or self.num_drawn >= self.sequence.max_tokens


class RowBatcher:
    """See `Batcher`. One thread generates; the event loop submits and receives."""

    def __init__(self, model: PreTrainedModel, loop: asyncio.AbstractEventLoop, limits: BatchLimits) -> None:
        """Prepare; nothing is allocated before `start`. Each of `limits.max_num_seqs` rows has its states.

        `model`'s attention is switched to ours; outboxes are filled on `loop`.
        """
        self._model = model
        self._deliver = Outboxes(loop).deliver
        self._device = torch.device("cpu") if model.device.type == "meta" else model.device
        self._pages = Pages(max(1, limits.kv_cache_tokens // PAGE_TOKENS))
        self.kv_cache_tokens = self._pages.num_pages * PAGE_TOKENS
        self.kv_cache_bytes = 0
        self.attention = "sdpa"
        self._max_num_seqs = limits.max_num_seqs
        self._budget = limits.max_num_batched_tokens
        self._chunk = max(1, self._budget - self._budget % _CHUNK_MULTIPLE or self._budget)
        self._rows: list[_Row] = []
        self._prefilling: _Row | None = None
        self._waiting: deque[_Row] = deque()
        self._num_admitted = 0
        self._cancelled: set[str] = set()
        self._is_prefill_stage = False
        self._isolation = Isolation()
        self._inbox = Inbox()  # the rest belongs to the generating thread
        self._thread: threading.Thread | None = None
        attention.use(model)
        reference_kernels.expect_on(self._device)

    def start(self, on_death: Callable[[BaseException], None]) -> None:
        """Allocate keys and states, and start the generating thread. Raises MemoryError."""
        with as_memory_error(
            f"a KV pool of {self.kv_cache_tokens} tokens and states of {self._max_num_seqs} sequences"
        ):
            self._cache = RowCache(self._probe(), self._max_num_seqs, self._pages.num_pages, self._device)
        self.kv_cache_bytes = self._cache.num_bytes
        self._thread = threading.Thread(target=self._run, args=(on_death,), name="row-batcher", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop at once; sequences that run are lost."""
        self._inbox.close()
        if self._thread is not None:
            self._thread.join(5)

    def submit(self, sequence: Sequence) -> None:
        """Queue a sequence."""
        if not self._inbox.submit(sequence):
            sequence.outbox.put_nowait(WorkerStopping())

    def cancel(self, sequence: Sequence) -> None:
        """Stop a sequence that nobody waits for."""
        self._inbox.cancel(sequence.request_id)

    def exclusive(self) -> AbstractContextManager[None]:
        """Hold the generating thread between two steps."""
        return self._inbox.pause()

    def load(self) -> BatcherLoad:
        """How busy it is."""
        running = len(self._rows) + (self._prefilling is not None)
        waiting = len(self._inbox) + len(self._waiting) + len(self._isolation)
        return BatcherLoad(running, waiting, 1.0 - self._pages.num_free / self._pages.num_pages)

    def cache_tensors(self) -> Iterable[torch.Tensor]:
        """Keys and states of all layers."""
        return self._cache.tensors()

    # The generating thread.

    def _run(self, on_death: Callable[[BaseException], None]) -> None:
        if self._device.type == "cuda" and self._device.index is not None:
            torch.cuda.set_device(self._device)
        try:
            with torch.no_grad():
                while (arrivals := self._inbox.wait(self._is_busy)) is not None:
                    self._guarded(lambda arrivals=arrivals: self._take_in(arrivals))  # type: ignore[misc]
                    self._guarded(self._decode)
                    self._guarded(self._prefill)
        except Exception as error:
            _log.exception("generation failed")
            self._inbox.close()
            on_death(error)

    @property
    def _is_busy(self) -> bool:
        return bool(self._rows or self._prefilling or self._waiting or self._isolation.is_active)

    def _guarded(self, stage: Callable[[], None]) -> None:
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
        rows = [*self._rows, *([self._prefilling] if self._prefilling else []), *self._waiting]
        self._deliver(undelivered_of(row.sequence for row in rows))
        everybody = [row.sequence for row in rows if not row.sequence.is_complete]
        everybody = [one for one in everybody if one.request_id not in self._cancelled]
        at_fault = [self._prefilling] if self._prefilling and self._is_prefill_stage else self._rows or rows[:1]
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
        """The next suspect; everybody, when there is none left."""
        self._clear()
        self._isolation.passed()
        following = self._isolation.next()
        for sequence in self._isolation.release() if following is None else [following]:
            self._queue(sequence)

    def _clear(self) -> None:
        """Nothing runs and nothing waits."""
        self._rows, self._prefilling, self._waiting = [], None, deque()
        self._pages, self._cancelled = Pages(self._pages.num_pages), set()

    def _queue(self, sequence: Sequence) -> None:
        self._waiting.append(_Row(sequence, self._num_admitted, [*sequence.prompt_ids, *sequence.drawn_ids]))
        self._num_admitted += 1

    @torch.no_grad()
    def _probe(self) -> DynamicCache:
        """The library's own cache after one token."""
        cache = DynamicCache(config=self._model.config.get_text_config())
        cu_seqlens = torch.tensor([0, 1], dtype=torch.int32, device=self._device)
        self._model(
            input_ids=torch.zeros(1, 1, dtype=torch.long, device=self._device),
            past_key_values=cache,
            use_cache=True,
            cu_seq_lens_q=cu_seqlens,
            cu_seq_lens_k=cu_seqlens,
        )
        return cache

    def _take_in(self, arrivals: Arrivals) -> None:
        for sequence in arrivals.submitted:
            if self._isolation.is_active:
                self._isolation.hold(sequence)
            else:
                self._queue(sequence)
        self._cancelled |= arrivals.cancelled  # kept until it is done: a failure comes back to it
        gone = self._cancelled
        self._isolation.forget(gone)
        self._waiting = deque(row for row in self._waiting if row.sequence.request_id not in gone)
        for row in [*self._rows, *([self._prefilling] if self._prefilling else [])]:
            if row.sequence.request_id in gone:
                self._release(row)
        self._cancelled = set()
        if self._isolation.is_active and not (self._rows or self._prefilling or self._waiting):
            self._run_next_alone()  # the one that ran alone has gone

    def _decode(self) -> None:
        """One token of every row."""
        self._is_prefill_stage = False
        self._allocate_pages()
        if not self._rows:
            return
        try:
            chosen = self._choose(self._rows, self._decode_forward())
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            failure = OutOfMemory.while_doing(f"decoding {len(self._rows)} sequences together", error)
        else:
            self._finish_step(list(self._rows), chosen)
            return
        # States of the first layers have moved on and those of the last have not: all rows are prefilled again.
        free_what_failed()
        largest = max(self._rows, key=lambda row: len(row.tokens))
        for row in sorted(self._rows, key=lambda row: row.order, reverse=True):
            self._release(row)
            if row is not largest:
                self._waiting.appendleft(row)
        self._deliver([(largest.sequence, failure)])

    def _decode_forward(self) -> torch.Tensor:
        """Logits [rows, vocab] after the last token of each."""
        last = torch.tensor([[row.tokens[-1]] for row in self._rows], device=self._device)
        lengths = [len(row.tokens) for row in self._rows]
        for row in self._rows:
            row.num_cached = len(row.tokens)
        return self._forward(last, torch.tensor(lengths, device=self._device)[:, None] - 1, self._cache.decode(lengths))

    def _prefill(self) -> None:
        """As many tokens of prompts as a step may have, each prompt alone, always cut at the same places."""
        self._is_prefill_stage = True
        budget = self._budget
        while (row := self._prefilling or self._admit()) is not None:
            chunk = row.tokens[row.num_cached : row.num_cached + self._chunk]
            if len(chunk) > budget:
                return
            budget -= len(chunk)
            self._prefill_chunk(row, chunk)

    def _prefill_chunk(self, row: _Row, chunk: list[int]) -> None:
        start, stop = row.num_cached, row.num_cached + len(chunk)
        is_last = stop == len(row.tokens)
        try:
            ids = torch.tensor([chunk], device=self._device)
            positions = torch.arange(start, stop, device=self._device)[None]
            step = self._cache.read_prompt(len(self._rows), start, stop)
            logits = self._forward(ids, positions, step)
            chosen = self._choose([row], logits) if is_last else []
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            failure = OutOfMemory.while_doing(f"prefilling {len(chunk)} tokens of its prompt", error)
        else:
            row.num_cached = stop
            if is_last:
                self._rows.append(row)
                self._prefilling = None
                self._finish_step([row], chosen)
            return
        free_what_failed()
        self._release(row)
        self._deliver([(row.sequence, failure)])

    def _forward(self, ids: torch.Tensor, positions: torch.Tensor, step: attention.RowStep) -> torch.Tensor:
        """Logits [batch, vocab], float32, after the last token of each."""
        output: Any = self._model(
            input_ids=ids,
            position_ids=positions,
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
            row_step=step,
        )
        return output.logits[:, -1].float()  # type: ignore[no-any-return]

    @staticmethod
    def _choose(rows: list[_Row], logits: torch.Tensor) -> Deliveries:
        return choose_tokens([row.sequence for row in rows], logits)

    def _finish_step(self, rows: list[_Row], chosen: Deliveries) -> None:
        """Deliver the tokens, and release the rows that have ended."""
        self._deliver(chosen)  # first: what was drawn is not drawn again, whatever fails after it
        for row, (_, item) in zip(rows, chosen, strict=True):
            if isinstance(item, SequenceFailed) or row.take(item):
                self._release(row)

    # Rows and pages.

    def _admit(self) -> _Row | None:
        """The next prompt, if there is a row for it, and pages for it and for a step of the others."""
        if not self._waiting or len(self._rows) >= self._max_num_seqs:
            return None
        row = self._waiting[0]
        needed = Pages.needed_for(len(row.tokens) + 1)
        if needed + len(self._rows) > self._pages.num_free and self._rows:
            return None
        self._waiting.popleft()
        if needed > self._pages.num_free:
            self._deliver([(row.sequence, self._too_long(row))])
            return self._admit()
        row.pages = self._pages.take(needed)
        self._cache.assign(len(self._rows), row.pages)
        self._prefilling = row
        return row

    def _allocate_pages(self) -> None:
        """A page for every row whose next token needs one; where none is free the youngest row is preempted."""
        for row in sorted(self._rows, key=lambda row: row.order):
            while row in self._rows and Pages.needed_for(len(row.tokens)) > len(row.pages):
                if self._pages.num_free:
                    new = self._pages.take(1)
                    self._cache.assign(self._rows.index(row), new, start=len(row.pages))
                    row.pages += new
                else:
                    self._preempt_youngest()

    def _preempt_youngest(self) -> None:
        """The youngest row goes back to the front of the queue; the only one is too long for the pool."""
        youngest = self._prefilling or max(self._rows, key=lambda row: row.order)
        self._release(youngest)
        if self._rows or self._prefilling:
            self._waiting.appendleft(youngest)
        else:
            self._deliver([(youngest.sequence, self._too_long(youngest))])

    def _too_long(self, row: _Row) -> SequenceFailed:
        return SequenceFailed(
            f"the KV pool holds {self.kv_cache_tokens} tokens, and this sequence has {len(row.tokens) + 1}; serve with "
            "a larger --kv-cache-memory-bytes"
        )

    def _release(self, row: _Row) -> None:
        """Give back its pages, and close the gap in the batch: rows that decode come first, then the one in prefill."""
        self._pages.give_back(row.pages)
        row.pages, row.num_cached = [], 0
        if row is self._prefilling:
            self._prefilling = None
            return
        gap, last = self._rows.index(row), len(self._rows) - 1
        if gap != last:
            self._cache.move(last, gap)
            self._rows[gap] = self._rows[last]
        del self._rows[last]
        if self._prefilling is not None:
            self._cache.move(last + 1, last)
