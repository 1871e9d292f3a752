"""transformers' continuous batching as the paged batcher drives it: every name of the library's inside stands here.

Half of them are private (`_generation_step`, `_wake_up_loop`) or undocumented. `tests/tiny/engine/test_continuous.py`
holds each against the installed release, and `tests/tiny/engine/continuous_names.toml` against every release that
pyproject.toml allows (`scripts/continuous_names.py` writes it).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import torch
from transformers import ContinuousBatchingConfig, GenerationConfig, LogitsProcessorList
from transformers.generation.continuous_batching.cb_logits_processors import (
    ContinuousBatchingLogitsProcessor,
    ContinuousBatchingLogitsProcessorList,
)
from transformers.generation.continuous_batching.requests import RequestState

from qserve.engine.transformers.attention.pages import PagedKernel
from qserve.engine.transformers.batching.batcher import BatcherLoad, Deliveries, Sequence, failure_of
from qserve.engine.transformers.batching.library_rows import page_step_of
from qserve.engine.transformers.sampling.batch import BatchSampler, choose_tokens
from qserve.engine.transformers.sampling.params import TokenChoice
from qserve.engine.transformers.transfers import upload

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["LibraryLoop", "OriginalStages", "Stages", "StepEntry"]

_NO_LIMIT = 1e6
"""As a share of free memory. The library would refuse pools that fit: it counts masks and copies that our attention
does not make, and holds the pages of all cards against what is free on the first one. The plan has counted both."""

Deliver = Callable[[Deliveries], None]


class Stages(Protocol):
    """What runs in the place of the three stages of the library's loop; none may raise, or the thread ends."""

    def prepare(self) -> bool:
        """Whether there is a step to take."""
        ...

    def step(self, model: Any) -> None:
        """Forward and sampling."""

    def update(self) -> None:
        """The library's bookkeeping of the step, and the ends of sequences."""


@dataclass(frozen=True)
class OriginalStages:
    """The library's own stages, which may raise."""

    prepare: Callable[[], bool]
    step: Callable[[Any], None]
    update: Callable[[], None]


class StepEntry(NamedTuple):
    """A sequence in the step at hand: how many of its tokens are computed, after how many that are cached."""

    sequence: Sequence
    num_tokens: int
    num_cached: int


class LibraryLoop:
    """The library's scheduler, pages and thread. All but `wake`, `pause` and `load` belong to that thread.

    Attributes:
        model: what it runs.
        num_changes: grows where a sequence comes or leaves otherwise than by its end.
        run_in_step: what is in the step where it is not the library's (`decoding.stages`).
        on_clear: called where the library is to forget what runs.

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
        self.run_in_step: Callable[[], list[StepEntry] | None] = lambda: None
        self.on_clear: Callable[[], None] = lambda: None
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
        self.manager.output_router = _Outputs(deliver)
        processors = ContinuousBatchingLogitsProcessorList(LogitsProcessorList([_Sampling(deliver)]))
        processors.tensors_required = 1
        self.manager.logit_processor = processors

    def allocate(self) -> Any:
        """Make the pages; the cache that they are in. Raises what the allocator raises."""
        self.manager.warmup()
        cache = self.manager.batch_processor.cache
        search = cache.search_prefix_match

        def counted(request_id: str, prompt_ids: list[int]) -> int:
            found: int = search(request_id, prompt_ids)
            self._num_shared_tokens += found
            return found

        cache.search_prefix_match = counted
        return cache

    @property
    def cache_bytes(self) -> int:
        return self.cache_tensor.nbytes

    @property
    def cache_tensor(self) -> torch.Tensor:
        """The pages of all layers, once they are made; on no device where each device has its own (`layer_cache`)."""
        tensor: torch.Tensor = self.manager.batch_processor.cache.cache_tensor
        return tensor

    def start(self, stages: Callable[[OriginalStages], Stages], on_death: Callable[[BaseException], None]) -> None:
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
        ours = stages(OriginalStages(processor.prepare_next_batch, processor._generation_step, processor.update_batch))
        processor.prepare_next_batch, processor._generation_step = ours.prepare, ours.step
        processor.update_batch = ours.update
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

    def add(self, sequence: Sequence) -> None:
        """To the library's queue, with the tokens that it has already drawn as part of its prompt."""
        self.num_changes += 1
        state = RequestState(
            request_id=sequence.request_id,
            initial_tokens=[*sequence.prompt_ids, *sequence.drawn_ids],
            max_new_tokens=sequence.max_tokens - len(sequence.drawn_ids),
            eos_token_id=sorted(sequence.stop_token_ids) or -1,
            logit_processor_kwargs={"sequence": sequence},
        )
        self._processor.scheduler.add_waiting_request(state)

    def cancel(self, request_id: str) -> None:
        """It leaves before the next step."""
        self.num_changes += 1
        self._processor.scheduler.set_request_cancellation(request_id)

    def in_step(self) -> list[StepEntry]:
        """Those that are in the step at hand, in order."""
        if (entries := self.run_in_step()) is not None:
            return entries
        futures = self._processor.inputs_and_outputs.requests_in_batch
        return [StepEntry(_sequence_of(one.state), one.query_length, one.state.position_offset) for one in futures]

    def scheduled(self) -> list[Sequence]:
        """Where no step was made: those that run, or the one that would be next."""
        scheduler = self._processor.scheduler
        running = list(scheduler.active_requests.values())
        return [_sequence_of(state) for state in running or list(scheduler.waiting_requests.values())[:1]]

    def finish_running(self) -> None:
        """Whatever runs gives back its pages."""
        self.on_clear()
        scheduler = self._processor.scheduler
        for request_id in list(scheduler.active_requests):
            scheduler.finish_request(request_id)

    def clear(self) -> None:
        """Nothing runs and nothing waits; what follows a step in the library's loop finds nothing to update."""
        self.on_clear()
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


def _sequence_of(state: Any) -> Sequence:
    sequence: Sequence = state.logit_processor_kwargs["sequence"]
    return sequence


class _Sampling(ContinuousBatchingLogitsProcessor):  # type: ignore[misc]  # transformers is untyped
    """Chooses a token for each row and tells its sequence; the argmax that follows finds the same one."""

    supported_kwargs: ClassVar[dict[str, type]] = {"sequence": Sequence}
    ignored_kwargs: ClassVar[tuple[str, ...]] = ()

    def __init__(self, deliver: Deliver) -> None:
        self._deliver = deliver
        self._sampler = BatchSampler()
        self._rows: list[Sequence] = []

    def fill_defaults(self, int32_tensor: torch.Tensor) -> None:
        """The library keeps a tensor of arguments per processor; ours are Python objects, so it stays zero."""
        int32_tensor.zero_()

    def prepare_tensor_args(self, requests_with_new_token: Iterable[Any]) -> torch.Tensor:
        """Called before the step with the requests whose next token it yields, in the order of the logits' rows."""
        self._rows = [_sequence_of(request.state) for request in requests_with_new_token]
        return torch.zeros(len(self._rows), dtype=torch.int32)

    def __call__(self, scores: torch.Tensor, tensor_arg: torch.Tensor) -> torch.Tensor:
        """`scores` [rows, vocab] float32; the chosen token of each row is lifted to plus infinity.

        Rows behind those that have a next token are of prompts that are not read to their ends.
        """
        if not self._rows:
            return scores
        deliveries = choose_tokens(self._rows, scores[: len(self._rows)], self._sampler)
        chosen = [[item.token_id if isinstance(item, TokenChoice) else 0] for _, item in deliveries]
        scores[: len(chosen)].scatter_(1, upload(chosen, torch.long, scores.device), float("inf"))
        self._deliver(deliveries)
        return scores


class _Outputs:
    """Where the library leaves what has ended. Our sequences hear of it token by token; only its failures are news."""

    def __init__(self, deliver: Deliver) -> None:
        self._deliver = deliver

    def deliver(self, output: Any) -> None:
        """Nobody reads it."""

    def deliver_batch(self, outputs: list[Any]) -> None:
        """Nobody reads them."""

    def fail_and_deliver(self, state: Any, error: Exception) -> None:
        """A request that the library gives up."""
        sequence = _sequence_of(state)
        self._deliver([(sequence, failure_of(sequence, error))])
