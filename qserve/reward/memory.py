"""Memory of the reward worker as measured: what the tensors hold, and what the system says of the process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psutil
import torch

from qserve.reward.scorer import RewardScorer

if TYPE_CHECKING:
    from collections.abc import Awaitable

__all__ = ["measured_memory", "with_own"]


def measured_memory(scorer: RewardScorer) -> dict[str, Any]:
    """Bytes per term, each with the way it was obtained."""
    memory = psutil.Process().memory_full_info()
    document: dict[str, Any] = {
        "weights_bytes": scorer.loaded.weights_bytes,
        "resident_bytes": memory.rss,
        "unique_bytes": memory.uss,
    }
    sources = {
        "weights_bytes": "sum of the parameters and buffers in memory, shared ones once",
        "resident_bytes": "psutil rss",
        "unique_bytes": "psutil uss",
    }
    if torch.cuda.is_available():
        document["device_peak_bytes"] = torch.cuda.max_memory_allocated()
        sources["device_peak_bytes"] = "torch.cuda.max_memory_allocated, the most since the start"
    return {**document, "sources": sources}


async def with_own(of_engine: Awaitable[dict[str, Any]]) -> dict[str, Any]:
    """What an engine's processes hold, and beside it this one, which speaks for them."""
    document, memory = await of_engine, psutil.Process().memory_full_info()
    for name, own in (("resident_bytes", memory.pss), ("unique_bytes", memory.uss)):
        document[name] += own
        document["sources"][name] += ", and the worker before them"
    return document
