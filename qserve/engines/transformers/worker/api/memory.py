"""GET /v1/qserve/memory: what the chat worker holds, term by term, and how each figure was obtained."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import psutil

from qserve.engines.transformers.worker.attention.report import attention_report
from qserve.engines.transformers.worker.code_path import code_path
from qserve.engines.transformers.worker.engine import Engine
from qserve.model.measured_weights import weights_by_device, weights_by_kind, weights_bytes
from qserve.model.memory import memory_beyond_weights
from qserve.model.resident import resident_bytes_of, resident_terms

__all__ = ["measured_memory"]


def measured_memory(engine: Engine) -> dict[str, Any]:
    """Bytes per term, each with the way it was obtained in `sources`. Sums are over all devices.

    `kernels` is `code_path`: which code computes, and which kernels the card refused.
    """
    loaded, model = engine.loaded, engine.loaded.model
    cache_bytes = resident_bytes_of(engine.batcher.cache_tensors())
    beside = memory_beyond_weights(model, loaded.cost, loaded.weights_bytes, cache_bytes)
    memory = psutil.Process().memory_full_info()
    graphs = engine.batcher.graph_memory
    held = {
        "weights_bytes": weights_bytes(model),
        "kv_cache_bytes": engine.batcher.kv_cache_bytes,
        **beside.terms,
        "runtime_bytes": max(0, beside.terms["runtime_bytes"] - graphs.outside_bytes),
        **({"cuda_graphs_bytes": graphs.num_bytes} if beside.cards else {}),
    }
    return {
        **held,
        "total_bytes": sum(held.values()),
        "kv_cache_tokens": engine.batcher.kv_cache_tokens,
        "attention": attention_report(model, engine.batcher.attention, engine.batcher.passed_over),
        "kernels": code_path(model, engine.batcher).as_dict(),
        "weights": weights_by_kind(model),
        "weights_by_device": weights_by_device(model),
        "resident_bytes": memory.rss,
        "resident": resident_terms(weights_by_device(model).get("cpu", 0), cache_bytes),
        "unique_bytes": memory.uss,
        "proportional_bytes": memory.pss,
        "devices": beside.cards,
        "load": asdict(loaded.cost),
        "quality": None if loaded.quality is None else asdict(loaded.quality),
        "notes": list(loaded.notes),
        "sources": {**_SOURCES, **beside.sources},
    }


_SOURCES = {
    "weights_bytes": "sum of the parameters, buffers and scales in memory, shared ones once",
    "kv_cache_bytes": "size of the KV pool's tensor",
    "kv_cache_tokens": "pages of the KV pool and the tokens of a page",
    "resident_bytes": "resident memory (RSS); pages of the KV pool count once they have been written",
    "resident": "/proc/self/smaps, mincore of the KV pool; all but shared_bytes sum to this process's RSS",
    "unique_bytes": "psutil uss",
    "proportional_bytes": "psutil pss",
    "load": "VmHWM and VmRSS of /proc/self/status less what was resident before; card: torch.cuda.max_memory_allocated",
    "cuda_graphs_bytes": "cudaMemGetInfo before and after each capture so far; the part outside the allocator "
    "is not in runtime_bytes",
    "total_bytes": "weights + KV pool + activations + runtime + CUDA graphs",
}
