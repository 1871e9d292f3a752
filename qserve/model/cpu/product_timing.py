"""Products one after the other in one call, as the steps of a model have them: what they take is measured by it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence

import torch

from qserve.model.cpu.build import library
from qserve.model.cpu.matrix import FEW_ROWS, Matrix, has_fast_products

__all__ = ["product_sequence"]


def product_sequence(matrices: Sequence[Matrix], states: Mapping[int, torch.Tensor]) -> Callable[[], torch.Tensor]:
    """A call that multiplies each with the `states` [rows, in_features] of its width, in bf16; gives the last result.

    A call of its own for each would take Python's time beside the product's, in which the threads that share it fall
    asleep: a fifth of what a row times 3 million weights takes.
    """
    found = library()
    assert found is not None, "the library was loaded when the matrices were made"
    chosen = [states[one.in_features] for one in matrices]
    rows = len(chosen[0])
    if rows > FEW_ROWS and not has_fast_products():  # each takes another way, which C does not know
        return lambda: [one.product(each) for one, each in zip(matrices, chosen, strict=True)][-1]
    addresses = ctypes.c_void_p * len(matrices)
    weights = addresses(*(ctypes.addressof(one.c) for one in matrices))
    inputs = addresses(*(each.data_ptr() for each in chosen))
    out = torch.empty(rows, max(one.out_features for one in matrices), dtype=torch.bfloat16)

    last = out.view(-1)[: rows * matrices[-1].out_features].view(rows, -1)

    def once() -> torch.Tensor:
        if found.products_in_turn(
            weights, inputs, ctypes.c_long(len(chosen)), ctypes.c_long(rows), ctypes.c_void_p(out.data_ptr())
        ):
            raise MemoryError(f"products of {rows} rows")
        return last

    return once
