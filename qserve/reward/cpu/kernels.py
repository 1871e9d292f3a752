"""row.c and attention.c for tensors: contiguous, bf16, on a CPU. What is written to stands first."""

from __future__ import annotations

import ctypes
from typing import Any

import torch

from qserve.errors import QserveError
from qserve.reward.attention import RowLayout
from qserve.reward.cpu.build import library

__all__ = ["add_rms_norm", "attend", "can_attend", "norm_and_rotate", "silu_and_multiply", "stretches_of"]

# A multiple of which the size of a head has to be.
_HEAD_STEP = 32


def _function(name: str) -> Any:
    found = library()
    if found is None:
        raise QserveError(f"{name}: there is no compiled library")  # a mistake of ours: the caller asks first
    return getattr(found, name)


def _at(tensor: torch.Tensor | None) -> ctypes.c_void_p:
    if tensor is None:
        return ctypes.c_void_p(0)
    assert tensor.is_contiguous(), "kernels read rows one after the other"
    return ctypes.c_void_p(tensor.data_ptr())


def add_rms_norm(states: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Adds `delta` to `states` [tokens, width] in place; returns states / rms · weight as a new tensor."""
    out = torch.empty_like(states)
    tokens, width = states.shape
    _function("add_rms_norm")(
        _at(states), _at(delta), _at(weight), _at(out), ctypes.c_long(tokens), ctypes.c_long(width), ctypes.c_float(eps)
    )
    return out


def norm_and_rotate(
    states: torch.Tensor, size: int, weight: torch.Tensor | None, eps: float, cos: torch.Tensor, sin: torch.Tensor
) -> None:
    """`states` [tokens, heads · size] in place: each head normed, if there is a weight [size], and rotated.

    `cos` and `sin` are [tokens, size] with equal halves, as the library's rotary embedding gives them.
    """
    tokens, width = states.shape
    _function("norm_and_rotate")(
        _at(states), _at(weight), _at(cos), _at(sin), ctypes.c_long(tokens), ctypes.c_long(width // size),
        ctypes.c_long(size), ctypes.c_float(eps),
    )  # fmt: skip


def silu_and_multiply(gate: torch.Tensor, up: torch.Tensor) -> None:
    """`gate` [tokens, width] becomes silu(gate) · up."""
    _function("silu_and_multiply")(_at(gate), _at(up), *(ctypes.c_long(number) for number in gate.shape))


def can_attend(size: int) -> bool:
    """Whether `attend` is there for this processor and heads of this size."""
    found = library()
    return found is not None and hasattr(found, "attend") and size % _HEAD_STEP == 0


def stretches_of(layout: RowLayout) -> torch.Tensor:
    """The layout as `attend` reads it: [stretches, 3] of start, stop, and the stretch that is shared or -1."""
    begins = {stretch.start: index for index, stretch in enumerate(layout.stretches)}
    rows = [
        (one.start, one.stop, begins[one.shared_start] if one.shared_stop > one.shared_start else -1)
        for one in layout.stretches
    ]
    return torch.tensor(rows, dtype=torch.int64)


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, size: int, scaling: float, stretches: torch.Tensor
) -> torch.Tensor:
    """Attention over a row: query [tokens, heads · size], key and value [tokens, kv_heads · size] to query's shape."""
    out = torch.empty_like(query)
    heads, kv_heads = query.shape[1] // size, key.shape[1] // size
    failed = _function("attend")(
        _at(query), _at(key), _at(value), _at(out), ctypes.c_long(heads), ctypes.c_long(kv_heads), ctypes.c_long(size),
        ctypes.c_float(scaling), _at(stretches), ctypes.c_long(len(stretches)),
    )  # fmt: skip
    if failed:
        raise MemoryError(f"attention over {len(query)} tokens")
    return out
