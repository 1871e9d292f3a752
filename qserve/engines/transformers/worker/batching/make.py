"""Which batcher serves which model. A new kind of cache is a new file and a line here."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from qserve.engines.transformers.worker.batching.batcher import Batcher, BatchLimits
from qserve.errors import UsageError
from qserve.planner.plan import Plan

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["PAGED_FIELDS", "make_batcher", "supports_pages"]

PAGED_FIELDS = frozenset({"page_size", "auto_switch_to_flash"})
"""Of the library's configuration: where one is missing, it is another library inside."""
_PAGED_LAYERS = {"full_attention", "sliding_attention"}
_ROW_LAYERS = {"full_attention", "linear_attention"}


def make_batcher(model: PreTrainedModel, loop: asyncio.AbstractEventLoop, plan: Plan) -> Batcher:
    """The batcher for `model`, with the plan's pool and limits. Raises UsageError for layers that none can serve."""
    layers = set(getattr(model.config.get_text_config(), "layer_types", None) or ["full_attention"])
    limits = BatchLimits(
        kv_cache_tokens=plan.kv_cache_tokens,
        max_num_seqs=plan.workload.max_num_seqs,
        max_num_batched_tokens=plan.workload.max_num_batched_tokens,
        captures=any(device.cuda_graphs_bytes for device in plan.devices),
        max_model_len=plan.workload.max_model_len,
    )
    if layers <= _PAGED_LAYERS and (supports_pages() or not layers <= _ROW_LAYERS):
        # Imports the library's continuous batching.
        from qserve.engines.transformers.worker.batching.paged import PagedBatcher

        return PagedBatcher(model, loop, limits)
    if layers <= _ROW_LAYERS:
        from qserve.engines.transformers.worker.batching.rows.batcher import RowBatcher

        return RowBatcher(model, loop, limits)
    paged, rows = " and ".join(sorted(_PAGED_LAYERS)), " and ".join(sorted(_ROW_LAYERS))
    raise UsageError(
        f"{plan.model.id} ({plan.model.architecture}) has layers of type {', '.join(sorted(layers))}, and the "
        f"transformers engine serves models of {paged}, or of {rows}; serve it with --engine vllm"
    )


def supports_pages() -> bool:
    """Whether the library's continuous batching is the one that the paged batcher drives: before transformers 5.19 it
    was built otherwise, and the row batcher serves full attention as well."""
    from transformers import ContinuousBatchingConfig

    return set(ContinuousBatchingConfig.__dataclass_fields__) >= PAGED_FIELDS
