"""Keeps the kernels that oneDNN compiles few: products in one of a few row counts, and a bound on how many are kept."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from qserve.core.kernel_shapes import MAX_KERNELS, filled_length

__all__ = ["bound_kernels", "fill_rows", "in_few_shapes"]

Product = Callable[[torch.Tensor], torch.Tensor]

# oneDNN reads it when it compiles its first kernel.
_CAPACITY = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"


def bound_kernels() -> None:
    """Have oneDNN keep at most MAX_KERNELS kernels in this process, unless its environment says how many."""
    os.environ.setdefault(_CAPACITY, str(MAX_KERNELS))


def in_few_shapes(product: Product, states: torch.Tensor) -> torch.Tensor:
    """`product` of `states` [..., width], whose rows are filled up to one of a few counts with zeros; the rest is cut.

    A product whose rows are independent of each other: a linear layer's.
    """
    width = states.shape[-1]
    num_rows = states.numel() // width
    filled = filled_length(num_rows)
    if filled == num_rows:
        return product(states)
    rows = torch.nn.functional.pad(states.reshape(num_rows, width), (0, 0, 0, filled - num_rows))
    return product(rows)[:num_rows].view(*states.shape[:-1], -1)


def fill_rows(model: nn.Module) -> None:
    """From now on the 16-bit linear layers of `model` in RAM compute in few shapes; `PackedLinear` does by itself.

    Layers that accelerate moves between devices are left alone.
    """
    for module in model.modules():
        if type(module) is nn.Linear and not hasattr(module, "_hf_hook") and _is_16_bit_in_ram(module.weight):
            module.forward = _filled(module.forward)  # type: ignore[method-assign, assignment]


def _is_16_bit_in_ram(weight: torch.Tensor) -> bool:
    return weight.device.type == "cpu" and weight.dtype in (torch.bfloat16, torch.float16)


def _filled(forward: Callable[..., Any]) -> Product:
    def forward_filled(input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - the library's name
        return in_few_shapes(forward, input)

    return forward_filled
