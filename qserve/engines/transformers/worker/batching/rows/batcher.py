"""The row batcher: a batched decoding loop over the model's own cache, for models with linear attention.

transformers' continuous batching lays all sequences end to end in one row, which a recurrent state can't follow. Here
each running sequence is a row of a batch: one forward a step takes one token of every row, whatever their lengths. A
new prompt is prefilled alone, `max_num_batched_tokens` at a time, between the decode steps of the others; then it is
the next row. No prompt is padded, so its state and its keys are bit for bit those that it would have alone.

Who has a row, and who has to wait, is decided in `scheduler`; what happens where a step fails, in `faults`.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from transformers import DynamicCache

from qserve.engines.transformers.kernels.kv_pages import PAGE_TOKENS
from qserve.engines.transformers.worker.attention import packed as attention
from qserve.engines.transformers.worker.attention.compiled_rows import CompiledRowStep, compile_rows
from qserve.engines.transformers.worker.attention.compiled_step import COMPILED
from qserve.engines.transformers.worker.batching.batcher import (
    BatcherLoad,
    BatchLimits,
    Deliveries,
    GraphMemory,
    Sequence,
)
from qserve.engines.transformers.worker.batching.queues import Arrivals, Inbox, Outboxes
from qserve.engines.transformers.worker.batching.rows.cache import RowCache
from qserve.engines.transformers.worker.batching.rows.faults import FaultTolerantRows
from qserve.engines.transformers.worker.batching.rows.scheduler import Row, RowScheduler
from qserve.engines.transformers.worker.batching.step_path import StepPath
from qserve.engines.transformers.worker.sampling.batch import BatchSampler, choose_tokens
from qserve.engines.transformers.worker.sampling.late import late_rows, wait_for_one
from qserve.engines.transformers.worker.sampling.likeliest import only_likeliest
from qserve.engines.transformers.worker.sampling.nucleus import choose_draw
from qserve.model import reference_kernels
from qserve.model.cpu.delta import replace_delta_nets
from qserve.model.failures import SequenceFailed, WorkerStopping
from qserve.model.out_of_memory import OutOfMemory, as_memory_error, free_what_failed, is_out_of_memory
from qserve.model.transfers import upload

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["RowBatcher"]

_log = logging.getLogger("qserve.worker")
# Chunks of a prompt end where linear attention's own chunks end (64 in every kernel), so that a prompt in pieces is
# computed as it would be whole.
_CHUNK_MULTIPLE = 64


class RowBatcher:
    """See `Batcher`. One thread generates; the event loop submits and receives."""

    def __init__(self, model: PreTrainedModel, loop: asyncio.AbstractEventLoop, limits: BatchLimits) -> None:
        """Prepare; nothing is allocated before `start`. Each of `limits.max_num_seqs` rows has its states.

        `model`'s attention is switched to ours; outboxes are filled on `loop`.
        """
        self._model = model
        self._deliver = Outboxes(loop).deliver
        self._device = torch.device("cpu") if model.device.type == "meta" else model.device
        self.kv_cache_tokens = max(1, limits.kv_cache_tokens // PAGE_TOKENS) * PAGE_TOKENS
        self.kv_cache_bytes = 0
        self.attention = "sdpa"
        self.graph_memory = GraphMemory()
        refused = choose_draw(self._device, model.config.get_text_config().vocab_size)
        self.step_path = StepPath(why_not_captured="steps of the row batcher are not captured", refused=refused)
        self.passed_over = {"flash-attn": "it does not serve hybrids here"}
        self._max_num_seqs = limits.max_num_seqs
        self._budget = limits.max_num_batched_tokens
        self._chunk = max(1, self._budget - self._budget % _CHUNK_MULTIPLE or self._budget)
        # Rows that decode stay the same for many steps; a prompt's last token is one of its own.
        self._samplers = {"decode": BatchSampler(), "prefill": BatchSampler()}
        self._has_stepped = False  # with the last look at who came
        self._inbox = Inbox()  # the rest belongs to the generating thread
        self._thread: threading.Thread | None = None
        self._undo: list[Callable[[], None]] = []  # what gives the model its own forwards back
        attention.use(model)
        reference_kernels.expect_on(self._device)

    def start(self, on_death: Callable[[BaseException], None]) -> None:
        """Allocate keys and states, and start the generating thread. Raises MemoryError."""
        num_pages = self.kv_cache_tokens // PAGE_TOKENS
        with as_memory_error(
            f"a KV pool of {self.kv_cache_tokens} tokens and states of {self._max_num_seqs} sequences"
        ):
            self._cache = RowCache(self._probe(), self._max_num_seqs, num_pages, self._device)
        self._scheduler = RowScheduler(
            self._cache, self._max_num_seqs, num_pages, lambda sequence, failure: self._deliver([(sequence, failure)])
        )
        self._faults = FaultTolerantRows(self._scheduler, self._deliver)
        self.kv_cache_bytes = self._cache.num_bytes
        self._undo = [replace_delta_nets(self._model)]
        if (undo := compile_rows(self._model, self._cache)) is not None:
            self._undo.append(undo)
            self.attention = COMPILED
        self._thread = threading.Thread(target=self._run, args=(on_death,), name="row-batcher", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop at once; sequences that run are lost."""
        self._inbox.close()
        if self._thread is not None:
            self._thread.join(5)
        while self._undo:
            self._undo.pop()()

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
        waiting = len(self._inbox) + len(self._scheduler.waiting) + self._faults.num_deferred
        return BatcherLoad(len(self._scheduler.running), waiting, self._scheduler.used_share)

    def cache_tensors(self) -> Iterable[torch.Tensor]:
        """Keys and states of all layers."""
        return self._cache.tensors()

    # The generating thread.

    def _run(self, on_death: Callable[[BaseException], None]) -> None:
        if self._device.type == "cuda" and self._device.index is not None:
            torch.cuda.set_device(self._device)
        try:
            with torch.no_grad():
                while (arrivals := self._inbox.wait(self._faults.is_busy)) is not None:
                    self._faults.guarded(lambda arrivals=arrivals: self._take_in(arrivals))  # type: ignore[misc]
                    self._faults.guarded(self._decode)
                    self._faults.guarded(self._prefill)
        except Exception as error:
            _log.exception("generation failed")
            self._inbox.close()
            on_death(error)

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
        self._faults.take_in(arrivals)

    def _decode(self) -> None:
        """One token of every row, but of those that sit out (`sampling.late`)."""
        self._faults.is_prefill_stage = False
        self._draw_late()
        self._scheduler.allocate_pages()
        rows = self._scheduler.going_on()
        if not rows:
            return
        try:
            chosen = self._choose(rows, self._decode_forward(rows))
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            failure = OutOfMemory.while_doing(f"decoding {len(rows)} sequences together", error)
        else:
            self._finish_step(rows, chosen)
            return
        # States of the first layers have moved on and those of the last have not: all rows are prefilled again.
        free_what_failed()
        self._deliver([(self._scheduler.release_all().sequence, failure)])

    def _draw_late(self) -> None:
        """Tokens of rows that sat out and need not any longer; where nobody else can go on it waits for them, shortly.

        Each alone: they come when they come.
        """
        late = self._scheduler.sitting_out()
        if late and not self._has_stepped:
            wait_for_one(row.sequence.sampler for row in late)
        self._has_stepped = False
        for row in late:
            if row.sequence.sampler.is_ready and row.logits is not None:
                self._finish_step([row], choose_tokens([row.sequence], row.logits))

    def _decode_forward(self, rows: list[Row]) -> torch.Tensor:
        """Logits [rows, vocab] after the last token of each of the first rows."""
        last = upload([[row.tokens[-1]] for row in rows], torch.long, self._device)
        lengths = [len(row.tokens) for row in rows]
        for row in rows:
            row.num_cached = len(row.tokens)
        positions = upload(lengths, torch.long, self._device)[:, None] - 1
        return self._forward(rows, last, positions, self._cache.decode(lengths))

    def _prefill(self) -> None:
        """As many tokens of prompts as a step may have, each prompt alone, always cut at the same places."""
        self._faults.is_prefill_stage = True
        budget = self._budget
        while (row := self._scheduler.prefilling or self._scheduler.admit()) is not None:
            chunk = row.tokens[row.num_cached : row.num_cached + self._chunk]
            if len(chunk) > budget:
                return
            budget -= len(chunk)
            self._prefill_chunk(row, chunk)

    def _prefill_chunk(self, row: Row, chunk: list[int]) -> None:
        start, stop = row.num_cached, row.num_cached + len(chunk)
        is_last = stop == len(row.tokens)
        try:
            ids = upload([chunk], torch.long, self._device)
            positions = torch.arange(start, stop, device=self._device)[None]
            step = self._cache.read_prompt(len(self._scheduler.rows), start, stop)
            logits = self._forward([row], ids, positions, step)
            chosen = self._choose([row], logits) if is_last else []
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            failure = OutOfMemory.while_doing(f"prefilling {len(chunk)} tokens of its prompt", error)
        else:
            row.num_cached = stop
            if is_last:
                self._scheduler.prefilled()
                self._finish_step([row], chosen)
            return
        free_what_failed()
        self._scheduler.release(row)
        self._deliver([(row.sequence, failure)])

    def _forward(
        self, rows: list[Row], ids: torch.Tensor, positions: torch.Tensor, step: attention.RowStep | CompiledRowStep
    ) -> torch.Tensor:
        """Logits [batch, vocab], float32, after the last token of each; of unlikely tokens they may be left out."""
        self._has_stepped = True
        with only_likeliest(self._model.get_output_embeddings(), (row.sequence.sampler for row in rows)):
            output: Any = self._model(
                input_ids=ids,
                position_ids=positions,
                past_key_values=self._cache,
                use_cache=True,
                logits_to_keep=1,
                row_step=step,
            )
        return output.logits[:, -1].float()  # type: ignore[no-any-return]

    def _choose(self, rows: list[Row], logits: torch.Tensor) -> Deliveries:
        """Tokens of those that have one; the others keep their logits."""
        sampler = self._samplers["prefill" if self._faults.is_prefill_stage else "decode"]
        late = late_rows([row.sequence.sampler for row in rows], is_all=len(rows) == len(self._scheduler.everybody))
        for index in late:
            rows[index].logits = logits[index : index + 1].clone()
        return choose_tokens([row.sequence for row in rows], logits, sampler, late)

    def _finish_step(self, rows: list[Row], chosen: Deliveries) -> None:
        """Deliver the tokens, and release the rows that have ended."""
        self._deliver(chosen)  # first: what was drawn is not drawn again, whatever fails after it
        items = dict(chosen)
        for row in rows:
            item = items.get(row.sequence)
            if item is None:
                continue
            row.logits = None
            if isinstance(item, SequenceFailed) or row.take(item):
                self._scheduler.release(row)
