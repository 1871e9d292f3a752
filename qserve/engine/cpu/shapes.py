"""Few lengths for the rows of matrix products on a CPU.

oneDNN compiles and keeps a kernel for each shape of a product that it meets. Prompts come in any length: a thousand
lengths are a thousand shapes of every layer's matrices, which held 0.8 GB after ten minutes of mixed requests.
"""

from __future__ import annotations

__all__ = ["MOST_EXACT_ROWS", "filled_length"]

MOST_EXACT_ROWS = 64
"""Up to here a decoding step keeps its own number of rows: filling one row up to 16 would cost it time."""


def filled_length(length: int) -> int:
    """The length that `length` rows are filled up to: a multiple of 16 up to 256, of 64 up to 1024, of 256 beyond."""
    step = 16 if length <= 256 else 64 if length <= 1024 else 256
    return -(-length // step) * step
