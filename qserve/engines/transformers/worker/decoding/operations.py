"""Three operations of a decoder layer beside its products and its attention, each one launch on a card.

Here they stand as torch's small operations, in the order and with the roundings of the library's modules: so they run
on a CPU, and a card's kernels (`triton_kernels`) are held against them. Both are known to torch under one name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

__all__ = ["ON_CARDS", "PLAIN", "REGISTERED", "add_rms_norm", "rotate_and_store", "silu_and_multiply"]

_LIBRARY = torch.library.Library("qserve", "DEF")  # type: ignore[no-untyped-call]
for _schema in (
    "add_rms_norm(Tensor(a!) states, Tensor? delta, Tensor weight, float eps) -> Tensor",
    "rotate_and_store(Tensor(a!) query, Tensor key, Tensor value, Tensor? query_weight, Tensor? key_weight, float eps, "
    "Tensor cos, Tensor sin, Tensor(b!) keys, Tensor(c!) values, Tensor write_index) -> ()",
    "silu_and_multiply(Tensor gate, Tensor up) -> Tensor",
):
    _LIBRARY.define(_schema)  # type: ignore[no-untyped-call]


def add_rms_norm(states: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Adds `delta` to `states` [tokens, width] in place; returns states / rms · weight as a new tensor."""
    normed: torch.Tensor = torch.ops.qserve.add_rms_norm(states, delta, weight, eps)
    return normed


def rotate_and_store(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    norms: tuple[torch.Tensor | None, torch.Tensor | None, float],
    angles: tuple[torch.Tensor, torch.Tensor],
    pages: tuple[torch.Tensor, torch.Tensor],
    write_index: torch.Tensor,
) -> None:
    """Each head of query and key normed, where there are weights, and rotated: queries in place, keys into the pages.

    Args:
        query: [tokens, heads, size]; written to. Tokens may lie apart, here and in `key` and `value`.
        key: [tokens, kv_heads, size].
        value: as `key`; goes into the pages as it is.
        norms: weights [size] of queries and keys, and eps.
        angles: cosines and sines [tokens, size], whose halves are equal.
        pages: of keys and of values [pages, page, kv_heads, size]; written to.
        write_index: int64 [tokens], a row of the pages laid end to end.

    """
    keys, values = (part.flatten(0, 1) for part in pages)
    torch.ops.qserve.rotate_and_store(query, key, value, *norms, *angles, keys, values, write_index)


def silu_and_multiply(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """silu(gate) · up, both [tokens, width], whose rows may lie apart."""
    mixed: torch.Tensor = torch.ops.qserve.silu_and_multiply(gate, up)
    return mixed


def _rms_norm(states: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    wide = states.float()
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(states.dtype)


def _add_rms_norm(states: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor, eps: float) -> torch.Tensor:
    if delta is not None:
        states.add_(delta)
    return _rms_norm(states, weight, eps)


def _rotate_and_store(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    query_weight: torch.Tensor | None,
    key_weight: torch.Tensor | None,
    eps: float,
    cos: torch.Tensor,
    sin: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    write_index: torch.Tensor,
) -> None:
    rotated = []
    for part, weight in ((query, query_weight), (key, key_weight)):
        normed = part if weight is None else _rms_norm(part, weight, eps)
        first, second = normed.chunk(2, dim=-1)
        rotated.append(normed * cos[:, None] + torch.cat((-second, first), dim=-1) * sin[:, None])
    query.copy_(rotated[0])
    keys.index_copy_(0, write_index, rotated[1])
    values.index_copy_(0, write_index, value)


def _silu_and_multiply(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.silu(gate) * up


def _nothing(*_: object) -> None:
    """What is written to has no values."""


PLAIN: dict[str, Callable[..., Any]] = {
    "add_rms_norm": _add_rms_norm,
    "rotate_and_store": _rotate_and_store,
    "silu_and_multiply": _silu_and_multiply,
}
"""torch's small operations, by name."""

ON_CARDS: dict[str, Callable[..., Any]] = dict(PLAIN)
"""What cards take: torch's small operations until `choose.py` has found the kernels that are right."""

REGISTERED: dict[str, Callable[..., Any]] = {name: getattr(torch.ops.qserve, name) for name in PLAIN}
"""What torch calls by these names on the device of what it is given."""


def _implement(functions: Mapping[str, Callable[..., Any]], device: str) -> None:
    for name, function in functions.items():
        _LIBRARY.impl(name, function, device)  # type: ignore[no-untyped-call]


def _on_card(name: str, *arguments: Any) -> Any:
    # Looked up at each launch, since torch takes one function for a device and name, and models differ.
    return ON_CARDS[name](*arguments)


_implement(PLAIN, "CPU")
_implement({name: partial(_on_card, name) for name in PLAIN}, "CUDA")
_implement(
    {
        "add_rms_norm": lambda states, *_: torch.empty_like(states),
        "rotate_and_store": _nothing,
        "silu_and_multiply": lambda gate, _: gate.new_empty(gate.shape),
    },
    "Meta",
)
