"""Memory of the reward worker as measured: what the tensors hold, and what the system says of the process."""

from __future__ import annotations

from typing import Any

import psutil
import torch

from qserve.reward.scorer import RewardScorer

__all__ = ["measured_memory"]


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
