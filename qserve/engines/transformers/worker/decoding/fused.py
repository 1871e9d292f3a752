"""Products of one input made as one: q, k and v of a layer, and gate and up.

A step of few rows takes the time in which its weights are read. k and v alone are too small to occupy a card, and seven
products of a layer have seven tails where four have four. The weights are laid behind each other, and not held twice:
the layers that the library calls keep views of the same memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.functional import linear

from qserve.model.cuda.linear import CardLinear
from qserve.model.cuda.trial import choose_products
from qserve.model.cuda.weights import Int8Weight
from qserve.model.layer_stream import is_streamed

__all__ = ["GATE_UP", "QKV", "fuse_products", "products"]

QKV = ("q_proj", "k_proj", "v_proj")
GATE_UP = ("gate_proj", "up_proj")
_NAME = "fused_products"  # of a module's plain attribute: no parameter of the model's


@dataclass(frozen=True)
class _Fused:
    """`product` of `parts` behind each other, which have `sizes` outputs."""

    product: Callable[[torch.Tensor], torch.Tensor]
    sizes: list[int]


def products(module: Any, names: tuple[str, ...], states: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Of `states` [tokens, inputs] by each of the layers `names` of `module`: [tokens, outputs], or views of one."""
    fused: _Fused | None = getattr(module, _NAME, None)
    if fused is None:
        return tuple(getattr(module, name)(states) for name in names)
    return torch.split(fused.product(states), fused.sizes, dim=-1)


@torch.no_grad()
def fuse_products(model: Any) -> int:
    """Lay weights behind each other in the layers of a dense decoder on one card; returns how many products that saves.

    Weights of 16 bit or more, and those of int8, which have a scale for each output. Those of 4 bits stay apart: each
    has an offset of its own scales. So do those with adapters and hooks, which are more than a product, and those of
    layers in RAM.
    """
    made: list[CardLinear] = []
    num_saved = 0
    for layer in model.get_decoder().layers:
        if is_streamed(layer):
            continue
        for module, names in ((layer.self_attn, QKV), (layer.mlp, GATE_UP)):
            product = _fused([getattr(module, name) for name in names])
            if product is None:
                continue
            module.__dict__[_NAME] = _Fused(product, [getattr(module, name).out_features for name in names])
            num_saved += len(names) - 1
            if isinstance(product, CardLinear):
                made.append(product)
    if made and made[0].device.type == "cuda":
        choose_products(nn.ModuleList(made), model.dtype)
    if num_saved and model.device.type == "cuda":
        torch.cuda.empty_cache()  # what the parts had
    return num_saved


def _fused(layers: Sequence[Any]) -> Callable[[torch.Tensor], torch.Tensor] | None:
    if not all(_is_product(one) for one in layers) or len({_form_of(one) for one in layers}) > 1:
        return None
    if isinstance(layers[0], nn.Linear):
        return partial(linear, weight=_joined(layers, "weight"), bias=_joined_bias(layers))
    return CardLinear(Int8Weight(_joined(layers, "weight"), _joined(layers, "scales")), _joined_bias(layers))


def _is_product(layer: Any) -> bool:
    """Whether it is that alone, of a weight whose rows stand for themselves."""
    if layer._forward_hooks or layer._forward_pre_hooks or hasattr(layer, "_hf_hook"):
        return False
    return type(layer) is nn.Linear or (type(layer) is CardLinear and isinstance(layer.held, Int8Weight))


def _form_of(layer: Any) -> tuple[object, ...]:
    return type(layer), layer.weight.dtype, layer.weight.device, layer.bias is None


def _joined_bias(layers: Sequence[Any]) -> torch.Tensor | None:
    return None if layers[0].bias is None else _joined(layers, "bias")


def _joined(layers: Sequence[Any], name: str) -> torch.Tensor:
    """The tensors `name` of all, of which each becomes a view."""
    parts = [getattr(one, name) for one in layers]
    joined = torch.cat([part.data for part in parts])
    for part, view in zip(parts, torch.split(joined, [len(part) for part in parts]), strict=True):
        part.data = view
    return joined
