"""The paged batcher: transformers' own continuous batching, with our sampler in its logits-processor seat.

The library schedules, pages the KV cache, shares blocks of equal prefixes and runs the model. Its sampling is global
(one `do_sample`, one seed, no penalties, no top logprobs), but it lets per-request processors see each row of logits
before it takes the argmax. Ours chooses the token there, request by request, and lifts its logit to plus infinity.

An exception in a step would end the library's thread, and with it everybody's request. So its three stages are wrapped
(`_Guard`): where memory runs out the sequence that asked for most of it fails, with any other error the one whose it is
(`isolation`), and the others are prefilled again from their tokens.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from transformers import ContinuousBatchingConfig, GenerationConfig, LogitsProcessorList
from transformers.generation.continuous_batching.cb_logits_processors import (
    ContinuousBatchingLogitsProcessor,
    ContinuousBatchingLogitsProcessorList,
)
from transformers.generation.continuous_batching.requests import RequestState

from qserve.core.kv_pages import FLASH_PAGE_TOKENS, PAGE_TOKENS
from qserve.engine.transformers.attention import packed as attention
from qserve.engine.transformers.attention.compiled_step import COMPILED, compile_steps
from qserve.engine.transformers.batching.batcher import BatcherLoad, Deliveries, Sequence, failure_of, undelivered_of
from qserve.engine.transformers.batching.isolation import Isolation
from qserve.engine.transformers.batching.layer_cache import placed_by_layer
from qserve.engine.transformers.sampling.choosing import choose_tokens
from qserve.engine.transformers.sampling.sampler import TokenChoice
from qserve.model.failures import SequenceFailed
from qserve.model.out_of_memory import (
    OutOfMemory,
    as_memory_error,
    free_what_failed,
    is_broken_device,
    is_out_of_memory,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["PagedBatcher"]

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
        page_size = FLASH_PAGE_TOKENS if is_flash else PAGE_TOKENS
        num_blocks = max(1, kv_cache_tokens // page_size)
        self.kv_cache_tokens = num_blocks * page_size
        self.kv_cache_bytes = 0
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
            attention.use(model)
        self.attention = attention.FLASH if is_flash else "sdpa"
        self._inbox = _Inbox()
        self._manager.output_router = _Outputs(self._deliver)
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
        self._guard = _Guard(self._manager, self._inbox, self._deliver)
        self._manager.start()

    def stop(self) -> None:
        """Stop at once; sequences that run are lost."""
        self._inbox.is_closed = True
        if self._manager.is_running():
            self._manager.stop(block=True, timeout=5, hard_stop=True)
        if self._undo_compiling is not None:
            self._undo_compiling()
            self._undo_compiling = None

    def submit(self, sequence: Sequence) -> None:
        """Queue a sequence."""
        if self._inbox.is_closed or not self._manager.is_running():
            sequence.outbox.put_nowait(SequenceFailed("the engine is stopping"))
            return
        self._inbox.submitted.append(sequence)
        self._manager._wake_up_loop.set()

    def cancel(self, sequence: Sequence) -> None:
        """Stop a sequence that nobody waits for."""
        self._inbox.cancelled.append(sequence.request_id)

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
        waiting = len(scheduler.waiting_requests) + len(self._inbox.submitted) + self._guard.num_held_back
        return BatcherLoad(len(scheduler.active_requests), waiting, used)

    def _deliver(self, deliveries: Deliveries) -> None:
        """From the generating thread: one wake-up of the loop for the whole step."""
        for sequence, _ in deliveries:
            sequence.undelivered = None
        self._loop.call_soon_threadsafe(_fill_outboxes, deliveries)


def _fill_outboxes(deliveries: Deliveries) -> None:
    for sequence, item in deliveries:
        sequence.outbox.put_nowait(item)


class _Inbox:
    """What the event loop asks of the generating thread, which takes it in before each step."""

    def __init__(self) -> None:
        self.submitted: deque[Sequence] = deque()
        self.cancelled: deque[str] = deque()
        self.is_closed = False


class _Guard:
    """The three stages of the library's loop, none of which raises; its methods belong to the generating thread."""

    def __init__(self, manager: Any, inbox: _Inbox, deliver: Callable[[Deliveries], None]) -> None:
        processor = manager.batch_processor
        self._manager = manager
        self._processor = processor
        self._inbox = inbox
        self._deliver = deliver
        self._isolation = Isolation()
        self._known: dict[str, Sequence] = {}  # taken in, and not ended
        self._prepare, self._step, self._update = (
            processor.prepare_next_batch, processor._generation_step, processor.update_batch,
        )  # fmt: skip
        processor.prepare_next_batch = self.prepare
        processor._generation_step = self.step
        processor.update_batch = self.update

    @property
    def num_held_back(self) -> int:
        """Sequences that wait until it is known which of them makes steps fail."""
        return len(self._isolation)

    def prepare(self) -> bool:
        """Whether there is a step to take."""
        failure: Exception | None = None
        try:
            self._take_in()
            if self._isolation.is_active and not self._processor.has_pending_requests():
                self._run_next_alone()
            is_available = bool(self._prepare())
            if is_available:
                return True
        except Exception as error:
            failure, is_available = error.with_traceback(None), False
        if failure is not None:
            self._recover(failure, self._scheduled())
        if failure is not None or self._isolation.is_active:
            self._manager._wake_up_loop.set()
        return is_available

    def step(self, model: Any) -> None:
        """Forward and sampling."""
        try:
            self._step(model)
            return
        except Exception as error:
            failure = error.with_traceback(None)  # the traceback holds the step's tensors
        free_what_failed()
        if is_out_of_memory(failure) and not self._isolation.is_active:
            self._give_up_largest(failure)
        else:
            self._recover(failure, self._in_batch())

    def update(self) -> None:
        """The library's own notes on the step, and the ends of sequences."""
        involved = self._in_batch()
        failure: Exception | None = None
        try:
            self._update()
        except Exception as error:
            failure = error.with_traceback(None)
        for one in involved:
            if one.is_complete:
                self._known.pop(one.request_id, None)
            if one.has_failed:  # by its own sampler, of which the library knows nothing
                self._processor.scheduler.set_request_cancellation(one.request_id)
        if failure is not None:
            self._recover(failure, involved)
        elif self._isolation.has_passed:
            self._run_next_alone()

    def _take_in(self) -> None:
        cancelled = {self._inbox.cancelled.popleft() for _ in range(len(self._inbox.cancelled))}
        while self._inbox.submitted:
            sequence = self._inbox.submitted.popleft()
            self._known[sequence.request_id] = sequence
            if self._isolation.is_active:
                self._isolation.hold(sequence)
            else:
                self._add(sequence)
        if cancelled:  # may name a sequence that was submitted just now
            self._isolation.forget(cancelled)
            for request_id in cancelled:
                if self._known.pop(request_id, None) is not None:
                    self._processor.scheduler.set_request_cancellation(request_id)

    def _add(self, sequence: Sequence) -> None:
        """To the library's queue, with the tokens that it has already drawn as part of its prompt."""
        state = RequestState(
            request_id=sequence.request_id,
            initial_tokens=[*sequence.prompt_ids, *sequence.drawn_ids],
            max_new_tokens=sequence.max_tokens - len(sequence.drawn_ids),
            eos_token_id=sorted(sequence.stop_token_ids) or -1,
            logit_processor_kwargs={"sequence": sequence},
        )
        self._processor.scheduler.add_waiting_request(state)

    def _in_batch(self) -> list[Sequence]:
        return [_sequence_of(future.state) for future in self._processor.inputs_and_outputs.requests_in_batch]

    def _scheduled(self) -> list[Sequence]:
        """Where the step was not made: those that run, or the one that would be next."""
        scheduler = self._processor.scheduler
        running = list(scheduler.active_requests.values())
        return [_sequence_of(state) for state in running or list(scheduler.waiting_requests.values())[:1]]

    def _recover(self, error: Exception, involved: list[Sequence]) -> None:
        """The library's books are cleared. The sequence at fault fails, the others are prefilled again.

        Raises the error where nothing can run any more.
        """
        if is_broken_device(error):
            raise error
        self._deliver(undelivered_of(involved))
        known = [one for one in involved if one.request_id in self._known and not one.is_complete]
        is_all, involved = bool(known) and known == involved, known or list(self._known.values())
        others = [one for one in self._known.values() if one not in involved and not self._isolation.holds(one)]
        self._processor.reset()
        self._processor.inputs_and_outputs.num_request_in_batch = 0
        for one in self._isolation.failed(involved, others, is_all=is_all):
            del self._known[one.request_id]
            self._deliver([(one, self._as_failure(one, error))])
        if self._isolation.is_active:
            _log.warning("a step of %d sequences failed (%s); running them one by one", len(involved), error)
        self._run_next_alone()

    @staticmethod
    def _as_failure(sequence: Sequence, error: Exception) -> SequenceFailed:
        if is_out_of_memory(error):
            return OutOfMemory.while_doing(f"running {sequence.num_tokens} tokens alone", error)
        return failure_of(sequence, error)

    def _run_next_alone(self) -> None:
        """The next suspect; everybody, when there is none left."""
        scheduler = self._processor.scheduler
        for request_id in list(scheduler.active_requests):
            scheduler.finish_request(request_id)
        self._isolation.passed()
        following = self._isolation.next()
        for sequence in self._isolation.release() if following is None else [following]:
            if sequence.request_id in self._known:
                self._add(sequence)

    def _give_up_largest(self, error: Exception) -> None:
        """The sequence with most tokens in the step (then, the longest) fails; the others are prefilled again."""
        futures = list(self._processor.inputs_and_outputs.requests_in_batch)
        largest = max(futures, key=lambda future: (future.query_length, future.state.position_offset))
        failed = _sequence_of(largest.state)
        others = [one for one in self._known.values() if one is not failed]
        self._processor.reset()
        # What follows the step in the library's loop finds nothing to update.
        self._processor.inputs_and_outputs.num_request_in_batch = 0
        for one in others:
            self._add(one)
        self._known.pop(failed.request_id, None)
        self._ask_for_less(sum(future.query_length for future in futures), len(futures))
        what = "decoding" if largest.query_length == 1 else f"prefilling {largest.query_length} tokens of its prompt"
        if len(futures) > 1:
            what += f" beside {len(futures) - 1} other sequences"
        self._deliver([(failed, OutOfMemory.while_doing(what, error))])

    def _ask_for_less(self, num_tokens: int, num_sequences: int) -> None:
        """The others are prefilled all at once, which would be too much once more: later steps take half as much."""
        processor = self._processor
        least = max(_LEAST_STEP_TOKENS, processor.cb_config.max_requests_per_batch)
        if num_tokens > num_sequences and processor.max_batch_tokens > least:
            processor.max_batch_tokens = max(least, min(processor.max_batch_tokens, num_tokens) // 2)
            _log.warning(
                "no memory for a step of %d tokens; from now on a step has at most %d. Serve with a lower "
                "--max-num-batched-tokens",
                num_tokens,
                processor.max_batch_tokens,
            )


def _sequence_of(state: Any) -> Sequence:
    sequence: Sequence = state.logit_processor_kwargs["sequence"]
    return sequence


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


class _Outputs:
    """Where the library leaves what has ended. Our sequences hear of it token by token; only its failures are news."""

    def __init__(self, deliver: Callable[[Deliveries], None]) -> None:
        self._deliver = deliver

    def deliver(self, output: Any) -> None:
        """Nobody reads it."""

    def deliver_batch(self, outputs: list[Any]) -> None:
        """Nobody reads them."""

    def fail_and_deliver(self, state: Any, error: Exception) -> None:
        """A request that the library gives up."""
        sequence = _sequence_of(state)
        self._deliver([(sequence, failure_of(sequence, error))])
