"""Memory of the reward worker as measured: what the tensors hold, and what the system says of the process."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import psutil

from qserve.model.cuda.choices import chosen_for, refusals_for
from qserve.model.fp8.choices import chosen_in_fp8
from qserve.model.fp8.experts_trial import refused_experts
from qserve.model.memory import memory_beyond_weights
from qserve.model.resident import resident_terms
from qserve.reward.scoring.scorer import RewardScorer

if TYPE_CHECKING:
    from collections.abc import Awaitable

__all__ = ["measured_memory", "with_process_memory"]


def measured_memory(scorer: RewardScorer) -> dict[str, Any]:
    """Bytes per term, each with the way it was obtained. `kernels`: products by quantized weights, and refused ones."""
    loaded = scorer.loaded
    beside = memory_beyond_weights(loaded.body, loaded.cost, loaded.weights_bytes)
    memory = psutil.Process().memory_full_info()
    held = {"weights_bytes": loaded.weights_bytes, **beside.terms}
    return {
        **held,
        "total_bytes": sum(held.values()),
        "resident_bytes": memory.rss,
        "resident": resident_terms(0 if beside.cards else loaded.weights_bytes),
        "kernels": {
            "products": {**chosen_for(loaded.body), **chosen_in_fp8(loaded.body)},
            "refused": [
                asdict(one) for one in (*refusals_for(loaded.body), *refused_experts(loaded.body), *loaded.refused)
            ],
        },
        "unique_bytes": memory.uss,
        "proportional_bytes": memory.pss,
        "devices": beside.cards,
        "load": asdict(loaded.cost),
        "sources": {
            "weights_bytes": "sum of the parameters and buffers in memory, shared ones once",
            "resident_bytes": "resident memory (RSS)",
            "resident": "/proc/self/smaps; all but shared_bytes sum to this process's RSS",
            "unique_bytes": "psutil uss",
            "total_bytes": "weights + activations + runtime",
            "proportional_bytes": "psutil pss",
            **beside.sources,
        },
    }


async def with_process_memory(of_engine: Awaitable[dict[str, Any]]) -> dict[str, Any]:
    """What an engine's processes hold, and beside it this one, which speaks for them."""
    document, memory = await of_engine, psutil.Process().memory_full_info()
    for name, own in (("resident_bytes", memory.pss), ("unique_bytes", memory.uss)):
        document[name] += own
        document["sources"][name] += ", and the worker before them"
    return document
