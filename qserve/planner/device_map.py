"""Layers over cards, RAM and disk: the `device_map` that accelerate dispatches by."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Bin", "Module", "fill"]


@dataclass(frozen=True)
class Module:
    """One indivisible piece: its name, weights, and the KV cache that lies with it."""

    name: str
    weights_bytes: int
    kv_cache_bytes: int = 0


@dataclass(frozen=True)
class Bin:
    """A place: a card's index, "cpu" or "disk", and the bytes it may take."""

    name: int | str
    capacity_bytes: int


def fill(modules: list[Module], bins: list[Bin]) -> list[tuple[Bin, list[Module]]] | None:
    """Modules in order into bins in order, as accelerate's infer_auto_device_map does; None when they don't fit.

    A bin that is left is not returned to: activations move forward only once per bin.
    """
    filled: list[tuple[Bin, list[Module]]] = [(place, []) for place in bins]
    index, used = 0, 0
    for module in modules:
        need = module.weights_bytes + module.kv_cache_bytes
        while index < len(bins) and used + need > bins[index].capacity_bytes:
            index, used = index + 1, 0
        if index == len(bins):
            return None
        filled[index][1].append(module)
        used += need
    return filled
