"""The forwards of decoding steps: one for each size of a batch, captured at start where that is possible.

A batch is padded to one of a few sizes. A graph reads tables of pages as wide as the longest sequence may become, so it
serves every length, and nothing is captured while requests are served.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable
from typing import Any

import torch

from qserve.engines.transformers.kernels.compiler_errors import reason_of
from qserve.engines.transformers.kernels.decode_sizes import batch_sizes, table_width_of
from qserve.engines.transformers.kernels.refusals import CAPTURE, Refusal, log_refusal, refusal
from qserve.engines.transformers.worker.attention.kernels import ChosenKernel
from qserve.engines.transformers.worker.attention.pages import PageStep
from qserve.engines.transformers.worker.batching.batcher import BatchLimits, GraphMemory
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
        kernel: ChosenKernel,
        *,
        dense: DenseSteps | None,
        capture: Capture | None,
        limits: BatchLimits,
    ) -> None:
        """`dense`: what runs its layers; None: the library's modules. `capture`: None where nothing is captured."""
        self._model, self._cache, self._kernel = model, cache, kernel
        self._books, self._dense = books, dense
        self._sizes = batch_sizes(limits.max_num_seqs)
        self._max_pages = books.max_pages(limits.max_model_len)
        self._buffers = DecodeBuffers.of(
            self._sizes[-1], self._max_pages, books.page_tokens, books.scratch_page, model.device
        )
        self._replays: dict[int, Callable[[], None]] = {}
        self._logits: torch.Tensor | None = None  # of what is captured: one for all sizes
        self.graph_memory = GraphMemory()
        if capture is not None and dense is not None:
            self._capture_all(capture)

    @property
    def num_captured(self) -> int:
        """Sizes that are captured."""
        return len(self._replays)

    @property
    def is_captured(self) -> bool:
        """Whether every size is captured."""
        return bool(self._replays) and not self.refused

    def buffers(self, num_rows: int, num_pages: int) -> DecodeBuffers:
        """For so many sequences, of at most so many pages each: until the next call, since all share their memory."""
        if self._replays:
            num_rows = self._sizes[bisect_left(self._sizes, num_rows)]
        width = self._max_pages if self._kernel.is_in_place else min(self._max_pages, table_width_of(num_pages))
        return self._buffers.first(num_rows, width)

    def __call__(self, buffers: DecodeBuffers) -> torch.Tensor:
        """Logits [rows, vocab] in float32 after one token of each row; the positions have moved on.

        They are read before the next forward writes over them.
        """
        num_rows = len(buffers.tokens)
        replay = self._replays.get(num_rows)
        if replay is None:
            return self._run(buffers)
        assert self._logits is not None
        replay()
        return self._logits[:num_rows]

    @torch.no_grad()
    def _capture_all(self, capture: Capture) -> None:
        """The largest first, whose memory the others use again. Each runs as it stands once: that readies kernels."""
        before = _free_and_reserved(self._model.device)
        for num_rows in reversed(self._sizes):
            buffers = self._buffers.first(num_rows, self._max_pages)
            buffers.fill([], [], [])
            try:
                logits = self._run(buffers)
                if self._logits is None:
                    self._logits = torch.empty_like(logits)
                self._replays[num_rows] = capture(self._into(buffers, self._logits[:num_rows]))
            except Exception as error:
                self.refused = (refusal(CAPTURE, f"{reason_of(error)} (batch size {num_rows})"),)
                log_refusal(_log, self.refused[0])
                self._replays.clear()
                break
        self.graph_memory = GraphMemory.since(before, _free_and_reserved(self._model.device))

    def _into(self, buffers: DecodeBuffers, out: torch.Tensor) -> Callable[[], object]:
        return lambda: self._run(buffers, out)

    def _run(self, buffers: DecodeBuffers, out: torch.Tensor | None = None) -> torch.Tensor:
        """Logits, in `out` where it is given. Nothing depends on what is in the buffers, so it may be captured."""
        step = PageStep(
            write_index=buffers.write_index(),
            block_table=buffers.block_table,
            num_keys=buffers.num_keys(),
            query_bounds=buffers.query_bounds,
            max_queries=1,
            max_keys=buffers.block_table.shape[1] * buffers.page_tokens,
            kernel=self._kernel.read,
        )
        logits = self._logits_of(buffers, step)
        buffers.positions.add_(buffers.advance)
        return logits.float() if out is None else out.copy_(logits)

    def _logits_of(self, buffers: DecodeBuffers, step: PageStep) -> torch.Tensor:
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
