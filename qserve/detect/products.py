"""Which products by weights that bitsandbytes holds the own engine tries on a card, when a worker starts."""

from __future__ import annotations

from collections.abc import Mapping

from qserve.core.cards.quantized_products import LIBRARY_ROWS, ROW_TILES

__all__ = ["quantized_products"]

_REST = f"more than {ROW_TILES[-1]} rows unpack a piece of the weight at a time"


def quantized_products(versions: Mapping[str, str]) -> str:
    """For a card, with these packages installed (bitsandbytes among them): a sentence for people."""
    library = f"4 bits of up to {LIBRARY_ROWS} rows are read by bitsandbytes ({versions['bitsandbytes']})"
    if "triton" not in versions:
        return f"{library}; all other rows unpack a piece of the weight at a time, since Triton is not installed"
    kernel = f"other products of up to {ROW_TILES[-1]} rows by Triton's kernels ({versions['triton']})"
    return f"{library}, {kernel} where they are right and the fastest when the worker starts; {_REST}"
