"""The paged batcher: transformers' own continuous batching, with our sampler in its logits-processor seat.

The library schedules, pages the KV cache, shares blocks of equal prefixes and runs the model. Its sampling is global
(one `do_sample`, one seed, no penalties, no top logprobs), but it lets per-request processors see each row of logits
before it takes the argmax. Ours chooses the token there, request by request, and lifts its logit to plus infinity.

`continuous` is all that is known of the library's inside, `paged_faults` what happens where a step fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from qserve.engines.transformers.worker.attention import packed as attention
from qserve.engines.transformers.worker.attention.compiled_step import COMPILED, CompiledSteps, compile_steps
from qserve.engines.transformers.worker.attention.kernels import Heads, choose_kernel
from qserve.engines.transformers.worker.batching.batcher import BatcherLoad, BatchLimits, GraphMemory, Sequence
from qserve.engines.transformers.worker.batching.continuous import LibraryLoop
from qserve.engines.transformers.worker.batching.layer_cache import placed_by_layer
from qserve.engines.transformers.worker.batching.lazy_pools import LazyPools
from qserve.engines.transformers.worker.batching.library_callbacks import Deliver
from qserve.engines.transformers.worker.batching.library_stages import LibraryStages, Stages
from qserve.engines.transformers.worker.batching.paged_faults import FaultTolerantStages
from qserve.engines.transformers.worker.batching.queues import Outboxes, PolledInbox
from qserve.engines.transformers.worker.batching.step_path import StepPath
from qserve.engines.transformers.worker.decoding.choose import fuses_products
from qserve.engines.transformers.worker.decoding.fused import fuse_products
from qserve.engines.transformers.worker.decoding.stages import DecodingStages, decodes_in_runs
from qserve.engines.transformers.worker.sampling.nucleus import choose_draw
from qserve.model.failures import WorkerStopping
from qserve.model.out_of_memory import as_memory_error

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

__all__ = ["PagedBatcher"]


class PagedBatcher:
    """See `Batcher`. One thread of the library's generates; the event loop submits and receives."""

    def __init__(self, model: PreTrainedModel, loop: asyncio.AbstractEventLoop, limits: BatchLimits) -> None:
        """Prepare the library's loop; nothing runs before `start`.

        `model`'s attention is switched to a kind that packs sequences (`attention.use`); outboxes are filled on `loop`.
        """
        self._model = model
        self.kernel = choose_kernel(model.device, Heads.of(model))
        self._refused_draw = choose_draw(model.device, model.config.get_text_config().vocab_size)
        page_size = self.kernel.page_tokens
        num_blocks = max(1, limits.kv_cache_tokens // page_size)
        self.kv_cache_tokens = num_blocks * page_size
        self.kv_cache_bytes = 0
        self._outboxes = Outboxes(loop)
        self._library = LibraryLoop(
            model,
            self._outboxes.deliver,
            page_size=page_size,
            num_blocks=num_blocks,
            max_num_seqs=limits.max_num_seqs,
            max_num_batched_tokens=limits.max_num_batched_tokens,
        )
        attention.use(model)
        self.attention, self.passed_over = self.kernel.name, self.kernel.passed_over
        self._inbox = PolledInbox()
        self._stages: FaultTolerantStages | None = None
        self._compiled: CompiledSteps | None = None
        self._limits = limits
        self._decoding: DecodingStages | None = None

    @property
    def graph_memory(self) -> GraphMemory:
        """What captured steps hold of a card."""
        return GraphMemory() if self._decoding is None else self._decoding.graph_memory

    @property
    def step_path(self) -> StepPath:
        """How decoding steps run now, and which kernels the card refused."""
        path = StepPath() if self._decoding is None else self._decoding.step_path
        return replace(path, refused=(*self.kernel.refused, *self._refused_draw, *path.refused))

    def start(self, on_death: Callable[[BaseException], None]) -> None:
        """Allocate the KV pool and start the generating thread; returns when it stands. Raises MemoryError."""
        if fuses_products(self._model):
            fuse_products(self._model)
        wanted = f"a KV pool of {self.kv_cache_tokens} tokens"
        with placed_by_layer(self._model), as_memory_error(wanted), LazyPools():
            cache = self._library.allocate()
        self.kv_cache_bytes = self._library.cache_bytes
        self._compiled = compile_steps(self._model, cache)
        if self._compiled is not None:
            self.attention = COMPILED
        self._library.start(self._guarded, on_death)

    def _guarded(self, original: LibraryStages) -> FaultTolerantStages:
        stages_of = partial(self._with_runs, original)
        self._stages = FaultTolerantStages(self._library, self._inbox, self._outboxes.deliver, stages_of)
        return self._stages

    def _with_runs(self, original: LibraryStages, deliver: Deliver) -> Stages:
        """`original`, with runs of our own where steps of decoding are taken so."""
        layers = None if self._compiled is None else self._compiled.layers
        if self._compiled is not None:
            self._library.tell_prompts()
        cache = self._library.processor.cache
        if layers is not None or (self._compiled is None and decodes_in_runs(self._model, cache)):
            self._decoding = DecodingStages(
                self._library, original, self.kernel, deliver, limits=self._limits, layers=layers
            )
            return self._decoding
        return original

    def stop(self) -> None:
        """Stop at once; sequences that run are lost."""
        self._inbox.is_closed = True
        self._library.stop()
        if self._compiled is not None:
            self._compiled.undo()
            self._compiled = None

    def submit(self, sequence: Sequence) -> None:
        """Queue a sequence."""
        if self._inbox.is_closed or not self._library.is_running:
            sequence.outbox.put_nowait(WorkerStopping())
            return
        self._inbox.submitted.append(sequence)
        self._library.wake()

    def cancel(self, sequence: Sequence) -> None:
        """Stop a sequence that nobody waits for."""
        self._inbox.cancelled.append(sequence.request_id)

    def exclusive(self) -> AbstractContextManager[None]:
        """Hold the generating thread between two steps."""
        return self._library.pause()

    def load(self) -> BatcherLoad:
        """How busy it is."""
        load = self._library.load()
        deferred = 0 if self._stages is None else self._stages.num_deferred
        return replace(load, num_waiting=load.num_waiting + len(self._inbox.submitted) + deferred)

    def cache_tensors(self) -> Iterable[torch.Tensor]:
        """The library's pool; that of layers on several devices has none of its own in RAM."""
        return (self._library.cache_tensor,)
