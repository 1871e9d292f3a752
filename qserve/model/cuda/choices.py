"""What was chosen for the products of one model, and which of our kernels its card refused (`trial.py` tries them)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from torch import nn

from qserve.engines.transformers.kernels.quantized_products import ROW_TILES
from qserve.engines.transformers.kernels.refusals import Refusal, product_name, refusal
from qserve.model.cuda.linear import card_linears
from qserve.model.cuda.products import CHOSEN, REFUSED, Key

__all__ = ["chosen_for", "refusals_for"]


def chosen_for(model: nn.Module) -> dict[str, dict[int, tuple[str, ...]]]:
    """By kind of weight and the most rows, the products that its shapes take, the most frequent first.

    Empty where no weight of `model` is multiplied by products of ours, and where none was tried.
    """
    found: dict[str, dict[int, list[str]]] = {}
    for key in _keys(model):
        if key in CHOSEN:
            found.setdefault(key[1], {}).setdefault(key[-1], []).append(CHOSEN[key])
    return {
        kind: {tile: tuple(name for name, _ in Counter(names).most_common()) for tile, names in tiles.items()}
        for kind, tiles in found.items()
    }


def refusals_for(model: nn.Module) -> tuple[Refusal, ...]:
    """One for each kernel that was refused for some shape or number of rows of `model`, by its first reason."""
    found: dict[str, Refusal] = {}
    for key in _keys(model):
        if key in REFUSED:
            name = product_name(key[1])
            found.setdefault(name, refusal(name, REFUSED[key]))
    return tuple(found.values())


def _keys(model: nn.Module) -> Iterator[Key]:
    """Each once."""
    layers = card_linears(model)
    shapes = {(str(layer.device), layer.kind, layer.out_features, layer.in_features): None for layer in layers}
    for device, kind, outputs, inputs in shapes:
        yield from ((device, kind, outputs, inputs, tile) for tile in ROW_TILES)
