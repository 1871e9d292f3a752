"""The forward of a decoding step: from buffers to logits, the same operations in every step of a run."""

from __future__ import annotations

from typing import Any

import torch

from qserve.engine.transformers.attention.pages import PagedKernel, PageStep
from qserve.engine.transformers.decoding.buffers import DecodeBuffers

__all__ = ["decode_logits"]


def decode_logits(model: Any, cache: Any, buffers: DecodeBuffers, kernel: PagedKernel) -> torch.Tensor:
    """Logits [sequences, vocab] in float32 after one token of each; the positions have moved on.

    Nothing in it depends on what is in the buffers, so it may be captured and replayed.
    """
    step = PageStep(
        write_index=buffers.write_index(),
        block_table=buffers.block_table,
        num_keys=buffers.num_keys(),
        query_bounds=buffers.query_bounds,
        max_queries=1,
        max_keys=buffers.block_table.shape[1] * buffers.page_tokens,
        kernel=kernel,
    )
    output: Any = model(
        input_ids=buffers.tokens[None],
        position_ids=buffers.positions[None],
        cache=cache,
        page_step=step,
        use_cache=False,
    )
    buffers.positions.add_(buffers.advance)
    logits: torch.Tensor = output.logits[0, : buffers.num_rows].float()
    return logits
