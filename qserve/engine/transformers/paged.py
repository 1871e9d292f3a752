"""The paged batcher: transformers' own continuous batching, with our sampler in its logits-processor seat.

The library schedules, pages the KV cache, shares blocks of equal prefixes and runs the model. Its sampling is global
(one `do_sample`, one seed, no penalties, no top logprobs), but it lets per-request processors see each row of logits
before it takes the argmax. Ours chooses the token there, request by request, and lifts its logit to plus infinity.

An exception in a step ends the library's thread, and with it everybody's request. Want of memory is no reason for that:
the step is wrapped, the sequence that asked for most of it fails, and the others are read again.
"""

from __future__ import annotations

import asyncio
import logging
import queue
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from transformers import ContinuousBatchingConfig, GenerationConfig, LogitsProcessorList
from transformers.generation.continuous_batching.cb_logits_processors import (
    ContinuousBatchingLogitsProcessor,
    ContinuousBatchingLogitsProcessorList,
)
from transformers.generation.continuous_batching.requests import RequestStatus

from qserve.engine.transformers import attention
from qserve.engine.transformers.batching import BatcherLoad, Deliveries, Sequence, SequenceFailed
from qserve.engine.transformers.choosing import choose_tokens
from qserve.engine.transformers.compiled_step import COMPILED, compile_steps
from qserve.engine.transformers.layer_cache import placed_by_layer
from qserve.engine.transformers.out_of_memory import OutOfMemory, as_memory_error, free_what_failed, is_out_of_memory
from qserve.engine.transformers.sampling import TokenChoice

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["PAGE_SIZE", "PagedBatcher"]

PAGE_SIZE = 32
"""Tokens in a KV page. Smaller pages share more of a prefix and waste less at the end; 256 is the library's default."""

_FLASH_PAGE_SIZE = 256
"""flash-attn 2 reads pages of whole multiples of this alone (flash_api.cpp: "page block size must be divisible by")."""

_NO_LIMIT = 1e6
"""As a share of free memory. The library would refuse pools that fit: it counts masks and copies that our attention
does not make, and holds the pages of all cards against what is free on the first one. The plan has counted both."""

_log = logging.getLogger("qserve.worker")
_LEAST_STEP_TOKENS = 64


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
            model: the loaded model; its attention is switched to a kind that packs sequences (`attention.use`).
            loop: where outboxes are filled.
            kv_cache_tokens: size of the KV pool; floored to whole pages.
            max_num_seqs: sequences that share a step.
            max_num_batched_tokens: tokens in a step; longer prompts are split.

        """
        self._model = model
        self._loop = loop
        is_flash = attention.prefers_flash(model)
        if is_flash:
            model.set_attn_implementation(attention.FLASH)
        page_size = _FLASH_PAGE_SIZE if is_flash else PAGE_SIZE
        num_blocks = max(1, kv_cache_tokens // page_size)
        self.kv_cache_tokens = num_blocks * page_size
        self.kv_cache_bytes = 0
        self._running: dict[str, Sequence] = {}
        self._manager = model.init_continuous_batching(
            # The argmax finds what our sampler chose. `eos` comes with each request.
            generation_config=GenerationConfig(do_sample=False, eos_token_id=-1, max_new_tokens=1),
            continuous_batching_config=ContinuousBatchingConfig(
                page_size=page_size,
                num_blocks=num_blocks,
                max_memory_percent=_NO_LIMIT,
                max_batch_tokens=max_num_batched_tokens,
                max_requests_per_batch=max_num_seqs,
                auto_switch_to_flash=False,  # it would fetch kernels from the hub, which nobody asked for
                # Sampling runs in Python between steps, so a step can neither overlap the next nor be a CUDA graph.
                use_async_batching=False,
                use_cuda_graph=False,
            ),
        )
        if not is_flash:
            attention.register()
            model.set_attn_implementation(attention.NAME)
        self.attention = attention.FLASH if is_flash else "sdpa"
        # Nobody reads it: what has no receiver any more (cancelled in the step in which it ended) would stay for ever.
        self._manager.output_router.output_queue = _Nowhere()
        processor = _Sampling(self._deliver)
        processors = ContinuousBatchingLogitsProcessorList(LogitsProcessorList([processor]))
        processors.tensors_required = 1
        self._manager.logit_processor = processors

    def start(self, on_death: Callable[[BaseException], None]) -> None:
        """Allocate the KV pool and start the generating thread; returns when it stands. Raises MemoryError."""
        with placed_by_layer(self._model), as_memory_error(f"a KV pool of {self.kv_cache_tokens} tokens"):
            self._manager.warmup()
        cache = self._manager.batch_processor.cache
        self.kv_cache_bytes = int(cache.cache_tensor.nbytes)
        self._undo_compiling = compile_steps(self._model, cache)
        if self._undo_compiling is not None:
            self.attention = COMPILED
        original = self._manager._handle_critical_error

        def report(error: Exception, batch_processor: Any) -> None:
            original(error, batch_processor)
            on_death(error)

        self._manager._handle_critical_error = report
        # On a card the library computes on a stream of its own, which nothing makes wait for the inputs that are copied
        # on the default one, and whose freed memory nobody else can have. A step does not overlap anything here.
        self._manager.batch_processor.inputs_and_outputs.compute_stream = None
        self._survive_want_of_memory(self._manager.batch_processor)
        self._manager.start()

    def stop(self) -> None:
        """Stop at once; sequences that run are lost."""
        if self._manager.is_running():
            self._manager.stop(block=True, timeout=5, hard_stop=True)
        if self._undo_compiling is not None:
            self._undo_compiling()
            self._undo_compiling = None

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

    def _survive_want_of_memory(self, processor: Any) -> None:
        step = processor._generation_step

        def guarded(model: Any) -> None:
            try:
                step(model)
                return
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                failure = error.with_traceback(None)  # the traceback holds the step's tensors
            free_what_failed()
            self._give_up_step(processor, failure)

        processor._generation_step = guarded

    def _give_up_step(self, processor: Any, error: Exception) -> None:
        """The sequence with most tokens in the step (then, the longest) fails; the others are read again from tokens.

        The library has noted the step as done before it ran, so none of them can simply be run once more. This is its
        own way of making room in a full cache (`OffloadingManager.offload_requests`).
        """
        scheduler = processor.scheduler
        futures = list(processor.inputs_and_outputs.requests_in_batch)
        largest = max(futures, key=lambda future: (future.query_length, future.state.position_offset))
        for future in futures:
            state = future.state
            again = state.create_equivalent_initial_request()
            state._status = RequestStatus.FINISHED  # past the setter, which would note an end in the library's log
            processor.cache.free_blocks(state.request_id, no_cache=True)
            scheduler.finish_request(state.request_id)
            if future is not largest:
                scheduler.add_waiting_request(again)
        scheduler.block_new_requests = False
        self._ask_for_less(processor, sum(future.query_length for future in futures), len(futures))
        # What follows the step in the library's loop finds nothing to update.
        processor.inputs_and_outputs.requests_in_batch = []
        processor.inputs_and_outputs.num_request_in_batch = 0
        what = "decoding" if largest.query_length == 1 else f"reading {largest.query_length} tokens of its prompt"
        if len(futures) > 1:
            what += f" beside {len(futures) - 1} other sequences"
        failed = largest.state.logit_processor_kwargs["sequence"]
        self._deliver([(failed, OutOfMemory.while_doing(what, error))])

    @staticmethod
    def _ask_for_less(processor: Any, num_tokens: int, num_sequences: int) -> None:
        """The others are read again all at once, which would be too much once more: later steps take half as much."""
        least = max(_LEAST_STEP_TOKENS, processor.cb_config.max_requests_per_batch)
        if num_tokens > num_sequences and processor.max_batch_tokens > least:
            processor.max_batch_tokens = max(least, min(processor.max_batch_tokens, num_tokens) // 2)
            _log.warning(
                "no memory for a step of %d tokens; from now on a step has at most %d. Serve with a lower "
                "--max-num-batched-tokens",
                num_tokens,
                processor.max_batch_tokens,
            )

    def _deliver(self, deliveries: Deliveries) -> None:
        """From the generating thread: one wake-up of the loop for the whole step."""
        self._loop.call_soon_threadsafe(self._fill_outboxes, deliveries)

    def _fill_outboxes(self, deliveries: Deliveries) -> None:
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

    def __init__(self, deliver: Callable[[Deliveries], None]) -> None:
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
        deliveries = choose_tokens(self._rows, scores)
        chosen = [item.token_id if isinstance(item, TokenChoice) else 0 for _, item in deliveries]
        scores[torch.arange(len(chosen)), torch.tensor(chosen, dtype=torch.long)] = float("inf")
        self._deliver(deliveries)
        return scores


class _Nowhere(queue.Queue[Any]):
    """A queue that keeps nothing."""

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        """Drop it."""
