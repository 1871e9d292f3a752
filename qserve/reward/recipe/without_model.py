"""Stands in for the model in a recipe of rules and judges alone."""

from __future__ import annotations

from typing import Any

import psutil

from qserve.reward.items import ScorerStats

__all__ = ["NoModel", "process_memory"]


class NoModel:
    """Takes the scorer's place in the app; it is never asked for a score."""

    tokens_ahead = 0
    vectors = None

    def __init__(self, max_length: int) -> None:
        self.max_length = max_length
        self.stats = ScorerStats()
        self.meta: dict[str, Any] = {"format": "none", "max_length": max_length}


def process_memory() -> dict[str, Any]:
    """As `measured_memory` of a worker with a model: all of it is the process itself."""
    memory = psutil.Process().memory_full_info()
    held = {"weights_bytes": 0, "activations_bytes": 0, "runtime_bytes": memory.rss}
    source = "resident memory (RSS)"
    return {
        **held,
        "total_bytes": memory.rss,
        "resident_bytes": memory.rss,
        "unique_bytes": memory.uss,
        "devices": [],
        "sources": dict.fromkeys((*held, "total_bytes", "resident_bytes", "unique_bytes"), source),
    }
