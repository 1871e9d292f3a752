"""Which products by weights that bitsandbytes holds the own engine tries on a card, when a worker starts."""

from __future__ import annotations

from collections.abc import Mapping

from qserve.engines.transformers.kernels.quantized_products import LIBRARY_ROWS, ROW_TILES

__all__ = ["quantized_products"]


def quantized_products(versions: Mapping[str, str]) -> str:
    """For a card, with these packages installed (bitsandbytes among them): a sentence for people."""
    library = f"4 bit: bitsandbytes {versions['bitsandbytes']} up to {LIBRARY_ROWS} rows"
    if "triton" not in versions:
        return f"{library}; more rows unpack the weights, which is slower: Triton is not installed"
    kernel = f"Triton {versions['triton']} up to {ROW_TILES[-1]}"
    return f"{library}, {kernel}, the faster of the two where both do; more rows unpack the weights"
