"""row.c, pages.c, attention.c and texts.c for tensors: contiguous, bf16, on a CPU. What is written to stands first."""

from __future__ import annotations

import ctypes
from typing import Any

import torch

from qserve.errors import QserveError
from qserve.model.cpu.build import library

__all__ = [
    "add_rms_norm",
    "attend",
    "attend_pages",
    "can_attend",
    "can_attend_pages",
    "norm_and_rotate",
    "silu_and_multiply",
]

# Of which the size of a head has to be a multiple, and its limit (attention.c: MOST_SIZE).
_HEAD_STEP = 32
_MOST_HEAD_SIZE = 1024
_PAGES_HEAD_STEP = 16


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


def add_rms_norm(
    states: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor, eps: float, *, centred: bool = False
) -> torch.Tensor:
    """Adds `delta` to `states` [tokens, width] in place; returns states / rms · weight as a new tensor.

    `centred`: the weight is stored less one.
    """
    out = torch.empty_like(states)
    tokens, width = states.shape
    _function("add_centred_norm" if centred else "add_rms_norm")(
        _at(states), _at(delta), _at(weight), _at(out), *map(ctypes.c_long, (tokens, width, width)), ctypes.c_float(eps)
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
        _at(states),
        _at(weight),
        _at(cos),
        _at(sin),
        ctypes.c_long(tokens),
        ctypes.c_long(width // size),
        ctypes.c_long(size),
        ctypes.c_float(eps),
    )


def silu_and_multiply(gate: torch.Tensor, up: torch.Tensor) -> None:
    """`gate` [tokens, width] becomes silu(gate) · up."""
    _function("silu_and_multiply")(_at(gate), _at(up), *(ctypes.c_long(number) for number in gate.shape))


def can_attend(size: int) -> bool:
    """Whether `attend` is there for heads of this size."""
    return library() is not None and size % _HEAD_STEP == 0 and size <= _MOST_HEAD_SIZE


def can_attend_pages(size: int) -> bool:
    """Whether `attend_pages` is there for heads of this size."""
    return library() is not None and size % _PAGES_HEAD_STEP == 0


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    size: int,
    scaling: float,
    segments: torch.Tensor,
    *,
    places: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Causal attention of several texts.

    Args:
        query: [tokens, heads · size].
        key: [rows, kv_heads · size].
        value: as `key`.
        size: of a head; see `can_attend`.
        scaling: factor on the scores.
        segments: int64 [texts, 5]: the first query, the one behind the last; the same of the keys, of which the last
            belongs to the last query; and the segment whose keys it sees as well, or -1.
        places: int64, the row of each key; None: they lie in order.
        out: like `query`; only the rows of the texts are written. None: a new one.

    Returns:
        `out`.

    """
    out = torch.empty_like(query) if out is None else out
    heads, kv_heads = query.shape[1] // size, key.shape[1] // size
    failed = _function("attend")(
        _at(query),
        _at(key),
        _at(value),
        _at(places),
        _at(out),
        ctypes.c_long(heads),
        ctypes.c_long(kv_heads),
        ctypes.c_long(size),
        ctypes.c_float(scaling),
        _at(segments),
        ctypes.c_long(len(segments)),
    )
    if failed:
        raise MemoryError(f"attention over {len(query)} tokens")
    return out


def attend_pages(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    size: int,
    scaling: float,
    *,
    rows: torch.Tensor,
    spans: torch.Tensor,
    places: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """Attention of sequences that decode one token each, into their rows of `out`.

    Args:
        query: [tokens, heads · size].
        keys: [any, kv_heads · size], a layer's cache.
        values: as `keys`.
        size: of a head; see `can_attend_pages`.
        scaling: factor on the scores.
        rows: int64 [sequences], the row of each one's query.
        spans: int64 [sequences, 2], where its keys begin and end in `places`.
        places: int64, rows of `keys`.
        out: like `query`.

    """
    heads, kv_heads = query.shape[1] // size, keys.shape[1] // size
    failed = _function("attend_pages")(
        _at(query),
        _at(keys),
        _at(values),
        _at(out),
        _at(rows),
        _at(spans),
        _at(places),
        ctypes.c_long(len(rows)),
        ctypes.c_long(heads),
        ctypes.c_long(kv_heads),
        ctypes.c_long(size),
        ctypes.c_float(scaling),
    )
    if failed:
        raise MemoryError(f"attention of {len(rows)} sequences")
