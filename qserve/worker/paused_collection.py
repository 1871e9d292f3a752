"""Imports of large libraries without walks of the garbage collector.

torch and transformers make some 700,000 objects that all stay. Python walks them again and again while they come: a
tenth of what a worker's start costs (docs/results/log/workers.md). Only for imports: loading weights leaves circles to
free.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

__all__ = ["paused_collection"]


@contextlib.contextmanager
def paused_collection() -> Iterator[None]:
    """Nothing is collected until the block ends; afterwards as before it."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
