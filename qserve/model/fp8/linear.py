"""Linear layers whose weight is in fp8, as the file has it or as it was made while loading."""

from __future__ import annotations

import math

import torch
from torch import nn

from qserve.errors import BrokenCheckpoint
from qserve.model.fp8.products import multiply
from qserve.model.fp8.weight import CODES, Fp8Weight, block_of

__all__ = ["MADE_SCALE", "Fp8Linear", "fp8_linears"]

MADE_SCALE = "weight_scale"
"""The name of scales that are made while loading: one a row."""


class Fp8Linear(nn.Module):
    """A weight in fp8 and its scales, under the names that the file has for them. Inference only.

    It is made without memory, and the library's loader fills it. In place of a layer's own weight none is ever made.
    """

    bias: nn.Parameter | None

    def __init__(self, linear: nn.Linear, scale: str, shape: tuple[int, ...], block: tuple[int, int] | None) -> None:
        """`scale`: the name of the scales, `shape`: theirs; `block`: what config.json says of blocks.

        Raises BrokenCheckpoint for scales that are not of the layer's shape.
        """
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        found = block_of((self.out_features, self.in_features), shape, block)
        if found is None:
            raise BrokenCheckpoint(
                f"scales of shape {list(shape)} don't match an fp8 weight {[self.out_features, self.in_features]} in "
                f"blocks of {block}: is weight_block_size of another model?"
            )
        self.scale_name, self._block = scale, found
        self.weight = _empty((self.out_features, self.in_features), CODES)
        self.register_parameter(scale, _empty(shape, torch.float32))
        self.register_parameter("bias", linear.bias)

    @property
    def held(self) -> Fp8Weight:
        """What is multiplied by."""
        scales = self.get_parameter(self.scale_name).data.float()
        rows, columns = self._block
        shape = (math.ceil(self.out_features / rows), math.ceil(self.in_features / columns))
        return Fp8Weight(self.weight.data, scales.view(shape), self._block)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`x` [..., in_features] to [..., out_features], in the dtype of `x`."""
        return multiply(x, self.held, self.bias)

    def extra_repr(self) -> str:
        """Shown where the model is printed."""
        has_bias = self.bias is not None
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={has_bias}, {self._block}"


def _empty(shape: tuple[int, ...], dtype: torch.dtype) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape, dtype=dtype, device="meta"), requires_grad=False)


def fp8_linears(model: nn.Module) -> list[Fp8Linear]:
    """Those of `model` whose weights are in memory, in its order: accelerate brings others when they are called."""
    return [one for one in model.modules() if isinstance(one, Fp8Linear) and one.weight.device.type != "meta"]
