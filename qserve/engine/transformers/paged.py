"""The paged batcher: transformers' own continuous batching, with our sampler in its logits-processor seat.

The library schedules, pages the KV cache, shares blocks of equal prefixes and runs the model. Its sampling is global
(one `do_sample`, one seed, no penalties, no top logprobs), but it lets per-request processors see each row of logits
before it takes the argmax. Ours chooses the token there, request by request, and lifts its logit to plus infinity.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from transformers import ContinuousBatchingConfig, GenerationConfig, LogitsProcessorList
from transformers.generation.continuous_batching.cb_logits_processors import (
    ContinuousBatchingLogitsProcessor,
    ContinuousBatchingLogitsProcessorList,
)
from transformers.utils.generic import is_flash_attention_requested

from qserve.engine.transformers import attention
from qserve.engine.transformers.batching import NOT_A_NUMBER, BatcherLoad, Sequence, SequenceFailed
from qserve.engine.transformers.sampling import TokenChoice

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["PAGE_SIZE", "PagedBatcher"]

PAGE_SIZE = 32
"""Tokens in a KV page. Smaller pages share more of a prefix and waste less at the end; 256 is the library's default."""

_Deliveries = list[tuple[Sequence, TokenChoice | SequenceFailed]]


class PagedBatcher:
    """See `Batcher`. One thread of the library's generates; the event loop submits and receives."""

    def __init__(
        self,
        model: PreTrainedModel,
        loop: asyncio.AbstractEventLoop,
        *,
        kv_cache_tokens: int,
        max_num_seqs: int,
        max_num_batched_tokens: int,
    ) -> None:
        """Prepare the library's manager; nothing runs before `start`.

        Args:
            model: the loaded model; its attention is switched to a kind that packs sequences.
            loop: where outboxes are filled.
            kv_cache_tokens: size of the KV pool; floored to whole pages.
            max_num_seqs: sequences that share a step.
            max_num_batched_tokens: tokens in a step; longer prompts are split.

        """
        self._model = model
        self._loop = loop
        num_blocks = max(1, kv_cache_tokens // PAGE_SIZE)
        self.kv_cache_tokens = num_blocks * PAGE_SIZE
        self.kv_cache_bytes = 0
        self._running: dict[str, Sequence] = {}
        self._manager = model.init_continuous_batching(
            # The argmax finds what our sampler chose. `eos` comes with each request.
            generation_config=GenerationConfig(do_sample=False, eos_token_id=-1, max_new_tokens=1),
            continuous_batching_config=ContinuousBatchingConfig(
                page_size=PAGE_SIZE,
                num_blocks=num_blocks,
                max_batch_tokens=max_num_batched_tokens,
                max_requests_per_batch=max_num_seqs,
                auto_switch_to_flash=model.device.type == "cuda",
                # Sampling runs in Python between steps, so a step can neither overlap the next nor be a CUDA graph.
                use_async_batching=False,
                use_cuda_graph=False,
            ),
        )
        if not is_flash_attention_requested(model.config):
            attention.register()
            model.set_attn_implementation(attention.NAME)
        processor = _Sampling(self._deliver)
        processors = ContinuousBatchingLogitsProcessorList(LogitsProcessorList([processor]))
        processors.tensors_required = 1
        self._manager.logit_processor = processors

    def start(self, on_death: Callable[[BaseException], None]) -> None:
        """Allocate the KV pool and start the generating thread; returns when it stands."""
        self._manager.warmup()
        self.kv_cache_bytes = int(self._manager.batch_processor.cache.cache_tensor.nbytes)
        original = self._manager._handle_critical_error

        def report(error: Exception, batch_processor: Any) -> None:
            original(error, batch_processor)
            on_death(error)

        self._manager._handle_critical_error = report
        self._manager.start()

    def stop(self) -> None:
        """Stop at once; sequences that run are lost."""
        if self._manager.is_running():
            self._manager.stop(block=True, timeout=5, hard_stop=True)

    def submit(self, sequence: Sequence) -> None:
        """Queue a sequence."""
        self._running[sequence.request_id] = sequence
        self._manager.register_result_handler(sequence.request_id, self._on_end)
        accepted = self._manager.add_request(
            input_ids=sequence.prompt_ids,
            request_id=sequence.request_id,
            max_new_tokens=sequence.max_tokens,
            eos_token_id=sorted(sequence.stop_token_ids) or -1,
            sequence=sequence,
        )
        if accepted is None:
            self._forget(sequence)
            sequence.outbox.put_nowait(SequenceFailed("the engine is stopping"))

    def cancel(self, sequence: Sequence) -> None:
        """Stop a sequence that nobody waits for."""
        if self._forget(sequence):
            self._manager.cancel_request(sequence.request_id)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold the generating thread between two steps."""
        with self._manager.pause():
            yield

    def load(self) -> BatcherLoad:
        """How busy it is, by the library's own books."""
        processor = self._manager.batch_processor
        if processor is None:
            return BatcherLoad(0, 0, 0.0)
        scheduler = processor.scheduler
        used = 1.0 - processor.cache.compute_free_capacity()
        waiting = len(scheduler.waiting_requests) + self._manager.input_queue.qsize()
        return BatcherLoad(len(scheduler.active_requests), waiting, used)

    def _deliver(self, deliveries: _Deliveries) -> None:
        """From the generating thread: one wake-up of the loop for the whole step."""
        self._loop.call_soon_threadsafe(self._fill_outboxes, deliveries)

    def _fill_outboxes(self, deliveries: _Deliveries) -> None:
        for sequence, item in deliveries:
            if sequence.request_id in self._running:
                sequence.outbox.put_nowait(item)
            else:
                # The library reads its queue of requests before that of cancellations: one that fell between the two
                # readings was cancelled before it was known, and would run to its end.
                self._manager.cancel_request(sequence.request_id)

    def _on_end(self, output: Any) -> None:
        sequence = self._running.pop(output.request_id, None)
        if sequence is not None and output.error is not None:
            sequence.outbox.put_nowait(SequenceFailed(str(output.error)))

    def _forget(self, sequence: Sequence) -> bool:
        with self._manager.output_router._lock:
            self._manager.output_router.result_handlers.pop(sequence.request_id, None)
        return self._running.pop(sequence.request_id, None) is not None


class _Sampling(ContinuousBatchingLogitsProcessor):  # type: ignore[misc]  # transformers is untyped
    """Chooses a token for each row and tells its sequence; the argmax that follows finds the same one."""

    supported_kwargs: ClassVar[dict[str, type]] = {"sequence": Sequence}
    ignored_kwargs: ClassVar[tuple[str, ...]] = ()

    def __init__(self, deliver: Callable[[_Deliveries], None]) -> None:
        self._deliver = deliver
        self._rows: list[Sequence] = []

    def fill_defaults(self, int32_tensor: torch.Tensor) -> None:
        """The library keeps a tensor of arguments per processor; ours are Python objects, so it stays zero."""
        int32_tensor.zero_()

    def prepare_tensor_args(self, requests_with_new_token: list[Any]) -> torch.Tensor:
        """Called before the step with the requests whose next token it yields, in the order of the logits' rows."""
        self._rows = [request.state.logit_processor_kwargs["sequence"] for request in requests_with_new_token]
        return torch.zeros(len(self._rows), dtype=torch.int32)

    def __call__(self, scores: torch.Tensor, tensor_arg: torch.Tensor) -> torch.Tensor:
        """`scores` [rows, vocab] float32; the chosen token of each row is lifted to plus infinity."""
        likeliest = scores.argmax(dim=-1).tolist()
        deliveries: _Deliveries = []
        chosen = []
        for row, sequence in enumerate(self._rows):
            item = _choose(sequence, scores[row], likeliest[row])
            chosen.append(item.token_id if isinstance(item, TokenChoice) else likeliest[row])
            deliveries.append((sequence, item))
        scores[torch.arange(len(chosen)), torch.tensor(chosen, dtype=torch.long)] = float("inf")
        self._deliver(deliveries)
        return scores


def _choose(sequence: Sequence, row: torch.Tensor, likeliest: int) -> TokenChoice | SequenceFailed:
    """A row that can't be sampled (NaN logits of a broken checkpoint) fails its own request and no other."""
    if not torch.isfinite(row[likeliest]):
        return SequenceFailed(NOT_A_NUMBER)
    if sequence.sampler.is_plain_greedy:
        sequence.sampler.record(likeliest)
        return TokenChoice(likeliest)
    return sequence.sampler.choose(row)
