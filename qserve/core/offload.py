"""Which models have their layers in RAM streamed to the card one ahead (model/layer_stream.py), for engine and plan."""

from __future__ import annotations

from collections.abc import Iterable

from qserve.core.families import has_dense_decoder

__all__ = ["NUM_BUFFERS", "are_streamed", "can_stream"]

NUM_BUFFERS = 2
"""Layers on the card at a time: the one that computes, and the next."""


def can_stream(architecture: str, bits: int) -> bool:
    """Dense decoders in 16 bit: their layers are alike, and a layer is read whole."""
    return bits >= 16 and has_dense_decoder(architecture)


def are_streamed(architecture: str, bits: int, places: Iterable[int | str]) -> bool:
    """With modules at `places`: one card and RAM. Over several cards, and from disk, accelerate brings each module."""
    lying = set(places)
    return can_stream(architecture, bits) and "cpu" in lying and "disk" not in lying and len(lying) == 2
