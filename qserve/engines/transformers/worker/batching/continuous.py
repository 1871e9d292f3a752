"""transformers' continuous batching as the paged batcher drives it.

The names of the library's inside stand here and in the `library_` modules beside it. Half of them are private
(`_generation_step`, `_wake_up_loop`) or undocumented. `tests/tiny/engine/test_continuous.py` holds each against the
installed release, and `tests/tiny/engine/continuous_names.toml` against every release that pyproject.toml allows
(`scripts/continuous_names.py` writes it).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from transformers import ContinuousBatchingConfig, GenerationConfig, LogitsProcessorList
from transformers.generation.continuous_batching.cb_logits_processors import ContinuousBatchingLogitsProcessorList
from transformers.generation.continuous_batching.requests import RequestState

from qserve.engines.transformers.worker.attention.pages import PagedKernel
from qserve.engines.transformers.worker.batching.batcher import BatcherLoad, Sequence
from qserve.engines.transformers.worker.batching.library_callbacks import Deliver, Outputs, Sampling, sequence_of
from qserve.engines.transformers.worker.batching.library_rows import page_step_of
from qserve.engines.transformers.worker.batching.library_stages import LibraryStages, LoopStages
from qserve.engines.transformers.worker.batching.salted_prefixes import salt_prefixes

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["LibraryLoop"]

_NO_LIMIT = 1e6
"""As a share of free memory. The library would refuse pools that fit: it counts masks and copies that our attention
does not make, and holds the pages of all cards against what is free on the first one. The plan has counted both."""


class LibraryLoop:
    """The library's scheduler, pages and thread. All but `wake`, `pause` and `load` belong to that thread.

    Attributes:
        model: what it runs.
        num_changes: grows where a sequence comes or leaves otherwise than by its end.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        deliver: Deliver,
        *,
        page_size: int,
        num_blocks: int,
        max_num_seqs: int,
        max_num_batched_tokens: int,
    ) -> None:
        """Nothing is allocated yet; `deliver` gets what each step has drawn."""
        self.model = model
        self.num_changes = 0
        self._num_shared_tokens = 0
        self.manager = model.init_continuous_batching(
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
        self.manager.output_router = Outputs(deliver)
        self._sampling = Sampling(deliver, model.get_output_embeddings())
        processors = ContinuousBatchingLogitsProcessorList(LogitsProcessorList([self._sampling]))
        processors.tensors_required = 1
        self.manager.logit_processor = processors

    def allocate(self) -> Any:
        """Make the pages; the cache that they are in. Raises what the allocator raises."""
        self.manager.warmup()
        salt_prefixes(self.manager.batch_processor, self._count_shared)
        return self.manager.batch_processor.cache

    def _count_shared(self, sequence: Sequence, num_tokens: int) -> None:
        self._num_shared_tokens += num_tokens
        if not sequence.sampled_ids:  # of one that goes on, its own tokens are found as well
            sequence.num_cached_tokens = num_tokens

    @property
    def cache_bytes(self) -> int:
        return self.cache_tensor.nbytes

    @property
    def cache_tensor(self) -> torch.Tensor:
        """The pages of all layers, once they are made; on no device where each device has its own (`layer_cache`)."""
        tensor: torch.Tensor = self.manager.batch_processor.cache.cache_tensor
        return tensor

    def start(self, stages: Callable[[LibraryStages], LoopStages], on_death: Callable[[BaseException], None]) -> None:
        """Start the thread, with `stages` around the library's own; `on_death` hears of an error that ends it."""
        original = self.manager._handle_critical_error

        def report(error: Exception, batch_processor: Any) -> None:
            original(error, batch_processor)
            on_death(error)

        self.manager._handle_critical_error = report
        processor = self._processor = self.manager.batch_processor
        # On a card the library computes on a stream of its own, which nothing makes wait for the inputs that are copied
        # on the default one, and whose freed memory nobody else can have. A step does not overlap anything here.
        processor.inputs_and_outputs.compute_stream = None
        ours = stages(LibraryStages(processor, self._sampling))
        processor.prepare_next_batch, processor._generation_step = ours.prepare, ours.step
        processor.update_batch = ours.update
        processor.offloading_manager.offload_requests = ours.offload
        self._margin = processor.scheduler.safety_margin
        self.manager.start()

    @property
    def is_running(self) -> bool:
        return bool(self.manager.is_running())

    def stop(self) -> None:
        """Stop at once."""
        if self.is_running:
            self.manager.stop(block=True, timeout=5, hard_stop=True)

    def wake(self) -> None:
        """There is something to do."""
        self.manager._wake_up_loop.set()

    def pause(self) -> AbstractContextManager[None]:
        """Hold the thread between two steps."""
        paused: AbstractContextManager[None] = self.manager.pause()
        return paused

    def load(self) -> BatcherLoad:
        """By the library's own figures; nothing waits or runs before `start`."""
        processor = self.manager.batch_processor
        if processor is None:
            return BatcherLoad(0, 0, 0.0)
        scheduler = processor.scheduler
        used = 1.0 - processor.cache.compute_free_capacity()
        active, waiting = len(scheduler.active_requests), len(scheduler.waiting_requests)
        return BatcherLoad(active, waiting, used, self._num_shared_tokens)

    @property
    def processor(self) -> Any:
        """The library's, once it has started."""
        return self._processor

    def read_pages_by_table(self, kernel: PagedKernel) -> None:
        """From now on steps of prompts, too, tell our attention which pages to read, and list no positions of keys."""
        inputs, cache = self._processor.inputs_and_outputs, self._processor.cache
        arguments, positions = inputs.get_model_kwargs, cache.extend_read_and_write_indices

        def with_pages(*args: Any, **kwargs: Any) -> Any:
            made = arguments(*args, **kwargs)
            return {**made, "page_step": page_step_of(inputs.requests_in_batch, cache, made, kernel)}

        def of_new_keys(request_id: str, past: int, new: int, read_index: Any, write_index: Any) -> None:
            positions(request_id, past, new, None, write_index)

        inputs.get_model_kwargs, cache.extend_read_and_write_indices = with_pages, of_new_keys

    @property
    def is_wanted_elsewhere(self) -> bool:
        """Whether somebody pauses the loop, or ends it."""
        status = self.manager.background_thread_status
        return bool(status.is_pause_requested() or status.local_status)

    @property
    def has_requests(self) -> bool:
        return bool(self._processor.has_pending_requests())

    def tell_prompts(self) -> None:
        """From now on a step tells the model whose queries are of a prompt (`reads_prompt`).

        What is left behind a chunk or a shared prefix may be one token, and is no sequence that decodes.
        """
        inputs = self._processor.inputs_and_outputs
        arguments = inputs.get_model_kwargs

        def with_prompts(*args: Any, **kwargs: Any) -> Any:
            states = [request.state for request in inputs.requests_in_batch]
            # They are as long by now as they are after the step.
            of_prompts = [state.position_offset <= len(state.initial_tokens) for state in states]
            return {**arguments(*args, **kwargs), "reads_prompt": of_prompts}

        inputs.get_model_kwargs = with_prompts

    def add(self, sequence: Sequence) -> None:
        """To the library's queue, with the tokens that it has already drawn as part of its prompt."""
        self.num_changes += 1
        state = RequestState(
            request_id=sequence.request_id,
            initial_tokens=[*sequence.prompt_ids, *sequence.sampled_ids],
            max_new_tokens=sequence.max_tokens - len(sequence.sampled_ids),
            eos_token_id=sorted(sequence.stop_token_ids) or -1,
            logit_processor_kwargs={"sequence": sequence},
        )
        self._processor.scheduler.add_waiting_request(state)

    def cancel(self, request_id: str) -> None:
        """It leaves before the next step."""
        self.num_changes += 1
        self._processor.scheduler.set_request_cancellation(request_id)

    def withdrawn(self) -> list[Sequence]:
        """Those that wait at the library, in their order; they do no longer."""
        scheduler = self._processor.scheduler
        waiting = [sequence_of(scheduler.waiting_requests[one]) for one in scheduler.waiting_requests_order]
        scheduler.waiting_requests.clear()
        scheduler.waiting_requests_order.clear()
        scheduler.block_new_requests = False
        return waiting

    def take_out(self, request_id: str) -> None:
        """One that runs, or waits, is forgotten; its whole pages are kept for as long as nobody needs them."""
        self.num_changes += 1
        scheduler = self._processor.scheduler
        if scheduler.waiting_requests.pop(request_id, None) is not None:
            scheduler.waiting_requests_order.remove(request_id)
        scheduler.finish_request(request_id)

    @property
    def keeps_margin(self) -> bool:
        """Whether prompts wait while few pages are free, so that those that run can grow."""
        return bool(self._processor.scheduler.safety_margin)

    @keeps_margin.setter
    def keeps_margin(self, is_kept: bool) -> None:
        self._processor.scheduler.safety_margin = self._margin if is_kept else 0.0

    def evict(self) -> bool:
        """Forget pages that nobody reads; whether there were any."""
        return bool(self._processor.cache.evict_cached_blocks())

    @property
    def num_active(self) -> int:
        return len(self._processor.scheduler.active_requests)

    @property
    def num_starved(self) -> int:
        """Of those that run: they had no pages for the last step."""
        return len(self._starved)

    @property
    def _starved(self) -> list[tuple[Any, int]]:
        scheduler = self._processor.scheduler
        return [one for one in scheduler.starved_requests if one[0].request_id in scheduler.active_requests]

    def can_store_starved(self) -> bool:
        """Whether there are pages for all of them now."""
        cache = self._processor.cache
        needed = [
            {
                name: allocator.needs_new_blocks(state.request_id, state.current_len(), num_tokens)
                for name, allocator in cache.cache_allocators.items()
            }
            for state, num_tokens in self._starved
        ]
        return bool(cache.count_storable_requests(needed) == len(needed))

    def scheduled(self) -> list[Sequence]:
        """Where no step was made: those that run, and those that would join them in it."""
        scheduler = self._processor.scheduler
        return [sequence_of(one) for one in (*scheduler.active_requests.values(), *scheduler.waiting_requests.values())]

    def finish_running(self) -> None:
        """Whatever runs gives back its pages."""
        scheduler = self._processor.scheduler
        for request_id in list(scheduler.active_requests):
            scheduler.finish_request(request_id)

    def clear(self) -> None:
        """Nothing runs and nothing waits; what follows a step in the library's loop finds nothing to update."""
        self._processor.reset()
        self._processor.inputs_and_outputs.num_request_in_batch = 0

    @property
    def max_num_seqs(self) -> int:
        return int(self._processor.cb_config.max_requests_per_batch)

    @property
    def max_step_tokens(self) -> int:
        """Of one step; may be set between steps."""
        return int(self._processor.max_batch_tokens)

    @max_step_tokens.setter
    def max_step_tokens(self, num_tokens: int) -> None:
        self._processor.max_batch_tokens = num_tokens
