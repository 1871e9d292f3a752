"""Which batcher serves which model. A new kind of cache is a new file and a line here."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from qserve.engine.transformers.batching import Batcher
from qserve.errors import UsageError
from qserve.planner.plan import Plan

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["make_batcher"]

_PAGED_LAYERS = {"full_attention", "sliding_attention"}


def make_batcher(model: PreTrainedModel, loop: asyncio.AbstractEventLoop, plan: Plan) -> Batcher:
    """The batcher for `model`, with the plan's pool and limits. Raises UsageError for layers that none can serve."""
    config = model.config.get_text_config()
    layers = set(getattr(config, "layer_types", None) or ["full_attention"])
    if not layers <= _PAGED_LAYERS:
        unknown, known = ", ".join(sorted(layers - _PAGED_LAYERS)), " and ".join(sorted(_PAGED_LAYERS))
        raise UsageError(
            f"{plan.model.id} ({plan.model.architecture}) has layers of type {unknown}, and transformers' continuous "
            f"batching knows only {known}; `qserve plan` plans such a model, but it can't be served yet"
        )
    from qserve.engine.transformers.paged import PagedBatcher  # imports the library's continuous batching

    return PagedBatcher(
        model,
        loop,
        kv_cache_tokens=plan.kv_cache_tokens,
        max_num_seqs=plan.workload.max_num_seqs,
        max_num_batched_tokens=plan.workload.max_num_batched_tokens,
    )
