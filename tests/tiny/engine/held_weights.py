"""Linear layers of a model as a card holds them, in all the forms that can lie behind each other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from bench.step_counts import hold
from qserve.model.cuda.linear import CardLinear
from qserve.model.cuda.weights import FourBitWeight
from qserve.model.fp8.linear import Fp8Linear
from qserve.model.fp8.weight import CODES

__all__ = ["BLOCKS", "hold_as"]

BLOCKS: dict[str, tuple[int, int] | None] = {
    "fp8-rows": None,
    "fp8-64x128": (64, 128),
    "fp8-128x128": (128, 128),
    "fp8-whole": None,
}
"""Forms in fp8, and what config.json says of blocks. "fp8-whole" has one scale for all of a weight."""


def hold_as(model: Any, held: str) -> Any:
    """`model`, whose layers are: int8, nf4, fp4, nf4-plain (of scales in float32), or one of `BLOCKS`; "": no change.

    Biases are random as well.
    """
    torch.manual_seed(3)
    body = model.get_decoder()
    for module in body.modules():
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.normal_(module.bias)
    if held in BLOCKS:
        _in_fp8(body, held)
    elif held:
        hold(body, held.removesuffix("-plain"))
    if held.endswith("-plain"):
        _with_plain_scales(body)
    return model


def _in_fp8(model: nn.Module, held: str) -> None:
    for name, child in list(model.named_children()):
        if type(child) is not nn.Linear:
            _in_fp8(child, held)
            continue
        (outputs, inputs), block = child.weight.shape, BLOCKS[held]
        shape: tuple[int, ...] = (outputs, 1) if block is None else (-(-outputs // block[0]), -(-inputs // block[1]))
        made = Fp8Linear(child, "weight_scale_inv", () if held == "fp8-whole" else shape, block)
        made.weight = nn.Parameter((child.weight.data * 100).to(CODES), requires_grad=False)
        scales = torch.rand(() if held == "fp8-whole" else shape) / 100
        made.register_parameter("weight_scale_inv", nn.Parameter(scales, requires_grad=False))
        setattr(model, name, made)


def _with_plain_scales(model: nn.Module) -> None:
    for name, child in list(model.named_children()):
        if not isinstance(child, CardLinear):
            _with_plain_scales(child)
            continue
        weight = child.held
        assert isinstance(weight, FourBitWeight)
        scales = torch.rand(len(weight.scales)) / 10
        setattr(model, name, CardLinear(replace(weight, scales=scales, nested=None), child.bias))
