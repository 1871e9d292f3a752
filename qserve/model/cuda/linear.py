"""Linear layers of a card whose weights bitsandbytes holds: the same memory, multiplied by our own products.

bitsandbytes' LLM.int8 asks the card once a layer whether there are outliers, and rounds all other numbers of a row to 8
bits. Here rows stay in 16 bit, so there are no outliers to ask for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from qserve.model.cuda.operations import multiply
from qserve.model.cuda.weights import FourBitWeight, Int8Weight, Weight, quantized_weight_of

__all__ = ["CardLinear", "card_linears", "compute_on_cards"]


class CardLinear(nn.Module):
    """A weight in 8 or 4 bits, and a bias or none. Inference only."""

    def __init__(self, weight: Weight, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.in_features, self.out_features, self.kind = weight.inputs, weight.outputs, weight.kind
        self.bias = None if bias is None else nn.Parameter(bias.data, requires_grad=False)
        self._names = []
        for name, tensor in _tensors(weight):
            self.register_buffer(name, tensor)
            self._names.append(name)
        self._block = 0
        self._part_rows: tuple[int, ...] = ()
        if isinstance(weight, FourBitWeight):
            self._block, self._part_rows = weight.block, weight.part_rows

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        weight = self.weight
        assert isinstance(weight, torch.Tensor)
        return weight.device

    @property
    def held(self) -> Weight:
        """What is multiplied by."""
        parts: dict[str, Any] = {name: getattr(self, name) for name in self._names}
        if not self._block:
            return Int8Weight(parts["weight"], parts["scales"])
        nested = (parts["nested_code"], parts["nested_scales"], parts["offsets"]) if "offsets" in parts else None
        sizes = self._block, self.in_features, self._part_rows
        return FourBitWeight(self.kind, parts["weight"], parts["code"], parts["scales"], nested, *sizes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`x` [..., in_features] to [..., out_features], in the dtype of `x`."""
        return multiply(x, self.held, self.bias)

    def extra_repr(self) -> str:
        """Shown where the model is printed."""
        has_bias = self.bias is not None
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={has_bias}, {self.kind}"


def _tensors(weight: Weight) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(weight, Int8Weight):
        yield from (("weight", weight.codes), ("scales", weight.scales))
        return
    assert isinstance(weight, FourBitWeight)
    yield from (("weight", weight.packed), ("code", weight.code), ("scales", weight.scales))
    if weight.nested is not None:
        yield from zip(("nested_code", "nested_scales", "offsets"), weight.nested, strict=True)


def compute_on_cards(model: nn.Module, device_type: str = "cuda") -> int:
    """Replace, in place, what bitsandbytes holds on cards; returns how many layers.

    Layers under accelerate's hooks, which bring weights when they are called, stay as they are, as do forms that no
    product takes (`weights.quantized_weight_of`).
    """
    num_replaced = 0
    for name, child in list(model.named_children()):
        weight = None
        if not hasattr(child, "_hf_hook") and _lies_on(child, device_type):
            weight = quantized_weight_of(child)
        if weight is not None:
            setattr(model, name, CardLinear(weight, getattr(child, "bias", None)))
            num_replaced += 1
        else:
            num_replaced += compute_on_cards(child, device_type)
    return num_replaced


def _lies_on(module: Any, device_type: str) -> bool:
    weight = getattr(module, "weight", None)
    return isinstance(weight, torch.Tensor) and weight.device.type == device_type


def card_linears(model: nn.Module) -> list[CardLinear]:
    """Those of `model`, in its order."""
    return [module for module in model.modules() if isinstance(module, CardLinear)]
