"""The C library's heap of a process that trains on a CPU: as it is, or tight where the plan leaves it no space to grow.

glibc 2.36 finds no place for an aligned block between freed ones of its size: layer by layer the heap grows. Blocks of
64 KiB and more can go back to the system instead, and what smaller ones leave before each step of the optimizer
(malloc_trim). Both cost page faults: docs/results/log/training.md. (A card's allocator: process/__main__.py.)
"""

from __future__ import annotations

import os

from qserve.training.job import TrainingRun

__all__ = ["TIGHT_HEAP", "heap_settings", "is_tight"]

# A MiB would not do: at 512 tokens keys of 85M are half of one, and adapters' temporaries of them left holes of 120.
TIGHT_HEAP = {"MALLOC_MMAP_THRESHOLD_": str(64 << 10), "MALLOC_TRIM_THRESHOLD_": str(16 << 20)}
# What a heap that grows may add to a peak (docs/results/log/training.md: up to 8 % was seen).
_GROWTH = 1.25


def heap_settings(run: TrainingRun) -> dict[str, str]:
    """Environment of a run on a CPU: tight where a heap that grows might not fit beside the planned peak."""
    needs = any(_GROWTH * one["used_bytes"] > one["total_bytes"] for one in run.plan.get("devices", ()))
    return TIGHT_HEAP if needs else {}


def is_tight() -> bool:
    """Whether this process was started with a heap that gives large blocks back, by the plan or by its user."""
    return "MALLOC_MMAP_THRESHOLD_" in os.environ
