"""Keeps the kernels that oneDNN compiles few: products in one of a few row counts, and a bound on how many are kept."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from qserve.engines.transformers.kernels.shapes import MAX_KERNELS, padded_length

__all__ = ["bound_kernels", "pad_linear_layers", "with_padded_rows"]

Product = Callable[[torch.Tensor], torch.Tensor]

# oneDNN reads it when it compiles its first kernel.
_CAPACITY = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"


def bound_kernels() -> None:
    """Have oneDNN keep at most MAX_KERNELS kernels in this process, unless its environment says how many."""
    os.environ.setdefault(_CAPACITY, str(MAX_KERNELS))


def with_padded_rows(product: Product, states: torch.Tensor) -> torch.Tensor:
    """`product` of `states` [..., width], padded with rows of zeros to one of a few counts; their results are dropped.

    A product whose rows are independent of each other: a linear layer's.
    """
    width = states.shape[-1]
    num_rows = states.numel() // width
    num_padded = padded_length(num_rows)
    if num_padded == num_rows:
        return product(states)
    rows = torch.nn.functional.pad(states.reshape(num_rows, width), (0, 0, 0, num_padded - num_rows))
    return product(rows)[:num_rows].view(*states.shape[:-1], -1)


def pad_linear_layers(model: nn.Module) -> None:
    """From now on the 16-bit linear layers of `model` in RAM compute in few shapes; `PackedLinear` does by itself.

    Layers that accelerate moves between devices are left alone.
    """
    for module in model.modules():
        if type(module) is nn.Linear and not hasattr(module, "_hf_hook") and _is_16_bit_in_ram(module.weight):
            module.forward = _padded(module.forward)  # type: ignore[method-assign, assignment]


def _is_16_bit_in_ram(weight: torch.Tensor) -> bool:
    return weight.device.type == "cpu" and weight.dtype in (torch.bfloat16, torch.float16)


def _padded(forward: Callable[..., Any]) -> Product:
    def forward_padded(input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - the library's name
        return with_padded_rows(forward, input)

    return forward_padded
