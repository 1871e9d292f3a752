"""What was chosen for the products of one model by its weights in fp8 (`trial.py` and `experts_trial.py` try them)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from torch import nn

from qserve.engines.transformers.kernels.quantized_products import ROW_TILES
from qserve.engines.transformers.kernels.refusals import FP8_EXPERTS
from qserve.model.cuda.products import KERNEL
from qserve.model.fp8.experts import Fp8Experts, fp8_experts
from qserve.model.fp8.linear import fp8_linears
from qserve.model.fp8.products import CHOSEN, MANY
from qserve.model.fp8.routing import GROUPED
from qserve.model.fp8.weight import Fp8Weight

__all__ = ["chosen_in_fp8"]


def chosen_in_fp8(model: nn.Module) -> dict[str, dict[int, tuple[str, ...]]]:
    """By kind of weight and the most rows (0: more than a kernel takes), products of its shapes, most frequent first.

    Of experts by grouped products: the tiles of rows that they have. Empty where nothing was tried.
    """
    found: dict[str, dict[int, list[str]]] = {}
    shapes = {(str(one.codes.device), one.kind, one.outputs, one.inputs): None for one in _weights(model)}
    for device, kind, outputs, inputs in shapes:
        for tile in (*ROW_TILES, MANY):
            if name := CHOSEN.get((device, kind, outputs, inputs, tile)):
                found.setdefault(kind, {}).setdefault(tile, []).append(name)
    for experts in fp8_experts(model):
        for tile in _tiles(experts):
            found.setdefault(FP8_EXPERTS, {}).setdefault(tile, []).append(KERNEL)
    return {
        kind: {tile: tuple(name for name, _ in Counter(names).most_common()) for tile, names in tiles.items()}
        for kind, tiles in found.items()
    }


def _weights(model: nn.Module) -> Iterator[Fp8Weight]:
    """Those that are multiplied by one by one."""
    yield from (layer.held for layer in fp8_linears(model))
    for experts in fp8_experts(model):
        if not _tiles(experts):
            upper, down = experts.held(0)
            yield from (*upper, down)


def _tiles(experts: Fp8Experts) -> tuple[int, ...]:
    return GROUPED.get((str(experts.down_proj.device), experts.shape), ()) if experts.can_be_grouped else ()
