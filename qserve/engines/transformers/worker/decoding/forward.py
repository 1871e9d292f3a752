"""The forwards of decoding steps: one for each size of a batch, captured where that is possible.

A batch is padded to one of a few sizes, and its tables to a width that is a power of two, so that few are captured.
A size that is met for the first time runs as it stands, which readies its kernels; then it is captured, and replayed
from the next step on.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from qserve.engines.transformers.kernels.compiler_errors import reason_of
from qserve.engines.transformers.kernels.decode_sizes import MAX_GRAPHS, batch_size_of, table_width_of
from qserve.engines.transformers.kernels.refusals import CAPTURE, Refusal, log_refusal, refusal
from qserve.engines.transformers.worker.attention.pages import PagedKernel, PageStep
from qserve.engines.transformers.worker.batching.batcher import GraphMemory
from qserve.engines.transformers.worker.batching.library_rows import LibraryRows
from qserve.engines.transformers.worker.decoding.body import DenseSteps
from qserve.engines.transformers.worker.decoding.buffers import DecodeBuffers

__all__ = ["Capture", "Forwards", "capture_on_card"]

_log = logging.getLogger("qserve.worker")

Capture = Callable[[Callable[[], object]], Callable[[], None]]
"""A forward to what replays it. It is recorded, not run."""


def capture_on_card(forward: Callable[[], object]) -> Callable[[], None]:
    """A CUDA graph; all share one pool of memory, since none runs beside another."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=_pool(), capture_error_mode="thread_local"):
        forward()
    replay: Callable[[], None] = graph.replay
    return replay


@dataclass(frozen=True)
class _Captured:
    buffers: DecodeBuffers
    replay: Callable[[], None]
    logits: torch.Tensor


class Forwards:
    """For one model and cache; belongs to the generating thread.

    Attributes:
        refused: that a size could not be captured: then no other is tried.

    """

    refused: tuple[Refusal, ...] = ()

    def __init__(
        self,
        model: Any,
        cache: Any,
        books: LibraryRows,
        kernel: PagedKernel,
        *,
        dense: DenseSteps | None,
        capture: Capture | None,
        max_num_seqs: int,
    ) -> None:
        """`dense`: what runs its layers; None: the library's modules. `capture`: None where nothing is captured."""
        self._max_rows = batch_size_of(max_num_seqs)
        self._model, self._cache, self._kernel = model, cache, kernel
        self._books, self._dense = books, dense
        self._capture = capture if dense is not None else None
        self._buffers: dict[tuple[int, int], DecodeBuffers] = {}
        self._logits_of_all: torch.Tensor | None = None  # of what is captured: one for all sizes
        self._captured: OrderedDict[tuple[int, int], _Captured] = OrderedDict()
        self.graph_memory = GraphMemory()

    @property
    def num_captured(self) -> int:
        """Sizes that are captured now."""
        return len(self._captured)

    @property
    def is_captured(self) -> bool:
        """Whether a size that is met for the first time is captured."""
        return self._capture is not None

    def buffers(self, num_rows: int, num_pages: int) -> DecodeBuffers:
        """For so many sequences, of at most so many pages each."""
        if self._capture is not None:
            num_rows = batch_size_of(num_rows)
        size = num_rows, table_width_of(num_pages)
        if size not in self._buffers:
            if len(self._buffers) >= MAX_GRAPHS:
                self._buffers = {kept: one.buffers for kept, one in self._captured.items()}
            made = DecodeBuffers.of(*size, self._books.page_tokens, self._books.scratch_page, self._model.device)
            self._buffers[size] = made
        return self._buffers[size]

    def __call__(self, buffers: DecodeBuffers) -> torch.Tensor:
        """Logits [rows, vocab] in float32 after one token of each row; the positions have moved on.

        They are read before the next forward writes over them.
        """
        num_rows, num_pages = buffers.block_table.shape
        size = num_rows, num_pages
        captured = self._captured.get(size)
        if captured is not None and captured.buffers is buffers:
            self._captured.move_to_end(size)
            captured.replay()
            return captured.logits
        logits = self._run(buffers)
        if self._capture is not None:
            self._try_to_capture(self._capture, size, buffers, logits.shape[1])
        return logits

    def _try_to_capture(self, capture: Capture, size: tuple[int, int], buffers: DecodeBuffers, vocab_size: int) -> None:
        before = _free_and_reserved(self._model.device)
        try:
            if self._logits_of_all is None:
                self._logits_of_all = torch.empty(self._max_rows, vocab_size, device=self._model.device)
            logits = self._logits_of_all[: size[0]]
            replay = capture(lambda: self._run(buffers, logits))
        except Exception as error:
            self.refused = (refusal(CAPTURE, f"{reason_of(error)} (batch size {size[0]})"),)
            log_refusal(_log, self.refused[0])
            self._capture = None
            return
        self.graph_memory += GraphMemory.since(before, _free_and_reserved(self._model.device))
        self._captured[size] = _Captured(buffers, replay, logits)
        while len(self._captured) > MAX_GRAPHS:
            forgotten, _ = self._captured.popitem(last=False)
            self._buffers.pop(forgotten, None)

    def _run(self, buffers: DecodeBuffers, out: torch.Tensor | None = None) -> torch.Tensor:
        """Logits, in `out` where it is given. Nothing depends on what is in the buffers, so it may be captured."""
        step = PageStep(
            write_index=buffers.write_index(),
            block_table=buffers.block_table,
            num_keys=buffers.num_keys(),
            query_bounds=buffers.query_bounds,
            max_queries=1,
            max_keys=buffers.block_table.shape[1] * buffers.page_tokens,
            kernel=self._kernel,
        )
        logits = self._logits(buffers, step)
        buffers.positions.add_(buffers.advance)
        return logits.float() if out is None else out.copy_(logits)

    def _logits(self, buffers: DecodeBuffers, step: PageStep) -> torch.Tensor:
        if self._dense is not None:
            return self._dense(buffers.tokens, buffers.positions, step, self._cache)
        output: Any = self._model(
            input_ids=buffers.tokens[None],
            position_ids=buffers.positions[None],
            cache=self._cache,
            page_step=step,
            use_cache=False,
        )
        logits: torch.Tensor = output.logits[0]
        return logits


def _free_and_reserved(device: torch.device) -> tuple[int, int]:
    """Bytes that are free on the card, and that torch's allocator holds; nothing of a CPU."""
    if device.type != "cuda":
        return 0, 0
    return torch.cuda.mem_get_info(device)[0], torch.cuda.memory_reserved(device)


_pools: list[Any] = []


def _pool() -> Any:
    if not _pools:
        _pools.append(torch.cuda.graph_pool_handle())
    return _pools[0]
