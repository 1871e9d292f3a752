"""Products of one input made as one: q, k and v of a layer, and gate and up.

A step of few rows takes the time in which its weights are read. k and v alone are too small to occupy a card, and seven
products of a layer have seven tails where four have four. The weights are laid behind each other, and not held twice:
the layers that the library calls keep views of the same memory.

Scales lie behind each other as the weights do. Nested ones of 4 bits are quantized in blocks of 256, and those of each
weight have an offset: weights fuse that have whole such blocks, and the product is told where the next offset begins.
Weights in fp8 fuse where no block of rows reaches from one into the next: those with a scale a row always, those with
one scale in all where they have as many outputs. Scales that a file has for activations are read by no product here
(`model/fp8/products.py`), so none has to be the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.functional import linear

from qserve.model.cuda.linear import CardLinear
from qserve.model.cuda.samples import Shape
from qserve.model.cuda.trial import choose_products
from qserve.model.cuda.weights import FourBitWeight, Int8Weight
from qserve.model.fp8.linear import Fp8Linear
from qserve.model.fp8.products import multiply
from qserve.model.fp8.trial import Fp8Shape, choose_for_weights
from qserve.model.fp8.weight import Fp8Weight
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


@dataclass(frozen=True)
class _ByFp8:
    weight: Fp8Weight
    bias: torch.Tensor | None

    def __call__(self, states: torch.Tensor) -> torch.Tensor:
        return multiply(states, self.weight, self.bias)


def products(module: Any, names: tuple[str, ...], states: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Of `states` [tokens, inputs] by each of the layers `names` of `module`: [tokens, outputs], or views of one."""
    fused: _Fused | None = getattr(module, _NAME, None)
    if fused is None:
        return tuple(getattr(module, name)(states) for name in names)
    return torch.split(fused.product(states), fused.sizes, dim=-1)


@torch.no_grad()
def fuse_products(model: Any) -> int:
    """Lay weights behind each other in the layers of a dense decoder on one card; returns how many products that saves.

    Those stay apart whose forms differ or whose scales can't lie behind each other; so do those with adapters and
    hooks, which are more than a product, and those of layers in RAM.
    """
    by_card: list[CardLinear] = []
    by_fp8: list[Fp8Weight] = []
    num_saved = 0
    for layer in model.get_decoder().layers:
        if is_streamed(layer):
            continue
        for module, names in ((layer.self_attn, QKV), (layer.mlp, GATE_UP)):
            layers = [getattr(module, name) for name in names]
            if not _can_be_one(layers):
                continue
            product = _fused(layers)
            module.__dict__[_NAME] = _Fused(product, [one.out_features for one in layers])
            num_saved += len(names) - 1
            if isinstance(product, CardLinear):
                by_card.append(product)
            elif isinstance(product, _ByFp8):
                by_fp8.append(product.weight)
    if num_saved and model.device.type == "cuda":
        choose_products(nn.ModuleList(by_card), model.dtype)
        choose_for_weights(by_fp8, model.dtype)
        torch.cuda.empty_cache()  # what the parts had
    return num_saved


def _can_be_one(layers: Sequence[Any]) -> bool:
    if not all(_is_product(one) for one in layers) or len({_form_of(one) for one in layers}) > 1:
        return False
    if isinstance(layers[0], Fp8Linear):
        return Fp8Shape.behind_each_other([Fp8Shape.of(one.held) for one in layers]) is not None
    if isinstance(layers[0], CardLinear):
        is_one = Shape.behind_each_other([Shape.of(one) for one in layers]) is not None
        return is_one and all(_have_same_tables(layers[0], one) for one in layers[1:])
    return True


def _is_product(layer: Any) -> bool:
    """Whether it is that alone."""
    if layer._forward_hooks or layer._forward_pre_hooks or hasattr(layer, "_hf_hook"):
        return False
    return type(layer) in (nn.Linear, CardLinear, Fp8Linear)


def _form_of(layer: Any) -> tuple[object, ...]:
    return type(layer), layer.weight.dtype, layer.weight.device, layer.bias is None


def _have_same_tables(one: CardLinear, other: CardLinear) -> bool:
    """Of what codes of 4 bits and of nested scales stand for. bitsandbytes makes the same ones; a file may hold any."""
    names = [name for name in ("code", "nested_code") if hasattr(one, name)]
    tables = [(getattr(one, name), getattr(other, name)) for name in names]
    return all(mine is its or torch.equal(mine, its) for mine, its in tables)


def _fused(layers: Sequence[Any]) -> Callable[[torch.Tensor], torch.Tensor]:
    inputs = layers[0].in_features
    bias = None if layers[0].bias is None else _joined([one.bias for one in layers])
    weight = _joined([one.weight for one in layers])
    if isinstance(layers[0], nn.Linear):
        return partial(linear, weight=weight.view(-1, inputs), bias=bias)
    held = layers[0].held
    if isinstance(held, Fp8Weight):
        scales = _joined([one.get_parameter(one.scale_name) for one in layers]).float()
        return _ByFp8(replace(held, codes=weight.view(-1, inputs), scales=scales.view(-1, held.scales.shape[1])), bias)
    scales = _joined([one.scales for one in layers])
    if isinstance(held, Int8Weight):
        return CardLinear(Int8Weight(weight.view(-1, inputs), scales), bias)
    assert isinstance(held, FourBitWeight)
    made = replace(held, packed=weight, scales=scales)
    if held.nested is not None:
        nested = (
            held.nested[0],
            _joined([one.nested_scales for one in layers]),
            _joined([one.offsets for one in layers]),
        )
        made = replace(made, nested=nested, part_rows=tuple(one.out_features for one in layers))
    return CardLinear(made, bias)


def _joined(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """What all hold, in one row; each becomes a view of it."""
    joined = torch.cat([part.data.flatten() for part in parts])
    for part, view in zip(parts, torch.split(joined, [part.numel() for part in parts]), strict=True):
        part.data = view.view(part.shape)
    return joined
