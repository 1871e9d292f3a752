"""Which heads have a copy in int8 beside them on a CPU (model/cpu/shortlist.py), for loading and for the plan alike."""

from __future__ import annotations

from qserve.units import MIB

__all__ = ["SHORTLIST_FROM_BYTES", "SHORTLIST_ROWS", "has_shortlist"]

SHORTLIST_FROM_BYTES = 64 * MIB
"""Of the head in bf16: a smaller one is read in less than a millisecond."""

SHORTLIST_ROWS = 8
"""Up to so many rows it is read: beyond them products are bound by arithmetic, which int8 saves nothing of, and the
likeliest tokens of all rows lie in many panels."""

_INT8_GROUP = 64  # inputs whose activations share a scale (model/cpu/matrix.h: GROUP)


def has_shortlist(vocab_size: int, hidden_size: int) -> bool:
    """Of a head in bf16, on a processor with products of our own."""
    return 2 * vocab_size * hidden_size >= SHORTLIST_FROM_BYTES and hidden_size % _INT8_GROUP == 0
