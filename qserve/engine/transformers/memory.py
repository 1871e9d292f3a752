"""Memory as measured: what the tensors hold, and what the system says of the process."""

from __future__ import annotations

from typing import Any

import psutil

from qserve.engine.transformers.engine import Engine

__all__ = ["measured_memory"]


def measured_memory(engine: Engine) -> dict[str, Any]:
    """Bytes per term, each with the way it was obtained."""
    memory = psutil.Process().memory_full_info()
    return {
        "weights_bytes": engine.loaded.weights_bytes,
        "kv_cache_bytes": engine.batcher.kv_cache_bytes,
        "kv_cache_tokens": engine.batcher.kv_cache_tokens,
        "resident_bytes": memory.rss,
        "unique_bytes": memory.uss,
        "sources": {
            "weights_bytes": "sum of the parameters and buffers in memory, shared ones once",
            "kv_cache_bytes": "size of the KV pool's tensor",
            "resident_bytes": "psutil rss (the KV pool counts once its pages were written)",
            "unique_bytes": "psutil uss",
        },
    }
