"""`operations` for cards, in Triton: one launch each, which rounds to 16 bit wherever torch's operations do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

from qserve.model.cuda.kernels import Sizes, card_kernel

__all__ = ["add_rms_norm", "rotate_and_store", "silu_and_multiply"]

_SILU_BLOCK = 1024


def add_rms_norm(states: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """As `operations.add_rms_norm`; a program a row."""
    out = torch.empty_like(states)
    tokens, width = states.shape
    block = triton.next_power_of_2(width)
    with _card_of(states):
        _add_rms_norm[(tokens,)](
            states,
            states if delta is None else delta,
            weight,
            out,
            width,
            eps,
            has_delta=delta is not None,
            block=block,
            num_warps=min(16, max(1, block // 512)),
        )
    return out


def rotate_and_store(
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
    """As `operations.rotate_and_store`; a program a token and head, those of keys after those of queries."""
    tokens, heads, size = query.shape
    kv_heads = key.shape[1]
    with _card_of(query):
        _rotate_and_store[(tokens, heads + kv_heads)](
            query,
            key,
            value,
            cos if query_weight is None else query_weight,  # what is not read
            cos if key_weight is None else key_weight,
            cos,
            sin,
            keys,
            values,
            write_index,
            heads,
            kv_heads,
            query.stride(0),
            key.stride(0),
            value.stride(0),
            eps,
            size // 2,
            norms_query=query_weight is not None,
            norms_key=key_weight is not None,
            half_block=triton.next_power_of_2(size // 2),
            num_warps=1,
        )


def silu_and_multiply(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """As `operations.silu_and_multiply`."""
    tokens, width = gate.shape
    out = gate.new_empty(tokens, width)
    with _card_of(gate):
        _silu_and_multiply[(triton.cdiv(width, _SILU_BLOCK), tokens)](
            gate, up, out, width, gate.stride(0), up.stride(0), block=_SILU_BLOCK
        )
    return out


def _card_of(tensor: torch.Tensor) -> AbstractContextManager[object]:
    """Triton launches on the current card, whatever its tensors lie on: in the thread that starts, on the first."""
    return torch.cuda.device_of(tensor)  # type: ignore[no-untyped-call]


def _norms(sizes: Sizes) -> Iterator[Callable[[], object]]:
    states, weight = _empty(sizes, 2, sizes.spec.hidden_size), _empty(sizes, sizes.spec.hidden_size)
    yield lambda: add_rms_norm(states, None, weight, 1e-6)
    yield lambda: add_rms_norm(states, states, weight, 1e-6)


def _rotations(sizes: Sizes) -> Iterator[Callable[[], object]]:
    spec = sizes.spec
    query, pages = _empty(sizes, 2, spec.num_attention_heads, spec.head_dim), _empty(sizes, 512, 1, spec.head_dim)
    key, angles = _empty(sizes, 2, spec.num_key_value_heads, spec.head_dim), _empty(sizes, 2, spec.head_dim)
    index = torch.empty(2, dtype=torch.int64, device="meta")
    weight = _empty(sizes, spec.head_dim) if spec.qk_norm else None
    yield lambda: rotate_and_store(query, key, key, weight, weight, 1e-6, angles, angles, pages, pages, index)


def _gates(sizes: Sizes) -> Iterator[Callable[[], object]]:
    gate = _empty(sizes, 2, 2 * sizes.spec.intermediate_size)
    yield lambda: silu_and_multiply(*gate.chunk(2, dim=-1))


def _empty(sizes: Sizes, *shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=sizes.dtype, device="meta")


@card_kernel(_norms)
def _add_rms_norm(states, delta, weight, out, width, eps, has_delta: tl.constexpr, block: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64) * width
    places = tl.arange(0, block)
    inside = places < width
    values = tl.load(states + row + places, mask=inside, other=0.0)
    dtype = values.dtype
    if has_delta:
        more = tl.load(delta + row + places, mask=inside, other=0.0)
        values = (values.to(tl.float32) + more.to(tl.float32)).to(dtype)
        tl.store(states + row + places, values, mask=inside)
    wide = values.to(tl.float32)
    rms = tl.sqrt(tl.sum(wide * wide, axis=0) / width + eps)
    factors = tl.load(weight + places, mask=inside, other=0.0)
    normed = (wide / rms).to(dtype).to(tl.float32) * factors.to(tl.float32)
    tl.store(out + row + places, normed.to(dtype), mask=inside)


@card_kernel(_rotations)
def _rotate_and_store(  # type: ignore[no-untyped-def]
    query,
    key,
    value,
    query_weight,
    key_weight,
    cos,
    sin,
    keys,
    values,
    write_index,
    heads,
    kv_heads,
    query_stride,
    key_stride,
    value_stride,
    eps,
    half,
    norms_query: tl.constexpr,
    norms_key: tl.constexpr,
    half_block: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    places = tl.arange(0, half_block)
    inside = places < half
    size = 2 * half
    angles = token * size + places
    cos_of = tl.load(cos + angles, mask=inside, other=0.0).to(tl.float32)
    sin_of = tl.load(sin + angles, mask=inside, other=0.0).to(tl.float32)
    # One constant above both branches: a dtype that a run-time branch assigns compiles for no card.
    dtype: tl.constexpr = query.dtype.element_ty
    if head < heads:
        start = token * query_stride + head * size
        first = tl.load(query + start + places, mask=inside, other=0.0)
        second = tl.load(query + start + half + places, mask=inside, other=0.0)
        if norms_query:
            first, second = _normed(first, second, query_weight, places, inside, half, eps)
        one, two = _rotated(first, second, cos_of, sin_of, dtype)
        tl.store(query + start + places, one, mask=inside)
        tl.store(query + start + half + places, two, mask=inside)
    else:
        head -= heads
        start = token * key_stride + head * size
        value_start = token * value_stride + head * size
        target = (tl.load(write_index + token) * kv_heads + head) * size
        first = tl.load(key + start + places, mask=inside, other=0.0)
        second = tl.load(key + start + half + places, mask=inside, other=0.0)
        if norms_key:
            first, second = _normed(first, second, key_weight, places, inside, half, eps)
        one, two = _rotated(first, second, cos_of, sin_of, dtype)
        tl.store(keys + target + places, one, mask=inside)
        tl.store(keys + target + half + places, two, mask=inside)
        tl.store(values + target + places, tl.load(value + value_start + places, mask=inside, other=0.0), mask=inside)
        rest = tl.load(value + value_start + half + places, mask=inside, other=0.0)
        tl.store(values + target + half + places, rest, mask=inside)


@triton.jit
def _normed(first, second, weight, places, inside, half, eps):  # type: ignore[no-untyped-def]
    dtype = first.dtype
    one, two = first.to(tl.float32), second.to(tl.float32)
    rms = tl.sqrt((tl.sum(one * one, axis=0) + tl.sum(two * two, axis=0)) / (2 * half) + eps)
    weight_one = tl.load(weight + places, mask=inside, other=0.0).to(tl.float32)
    weight_two = tl.load(weight + half + places, mask=inside, other=0.0).to(tl.float32)
    one = ((one / rms).to(dtype).to(tl.float32) * weight_one).to(dtype)
    two = ((two / rms).to(dtype).to(tl.float32) * weight_two).to(dtype)
    return one, two


@triton.jit
def _rotated(first, second, cos_of, sin_of, dtype: tl.constexpr):  # type: ignore[no-untyped-def]
    one, two = first.to(tl.float32), second.to(tl.float32)
    along_one, along_two = (one * cos_of).to(dtype).to(tl.float32), (two * cos_of).to(dtype).to(tl.float32)
    across_one, across_two = (-two * sin_of).to(dtype).to(tl.float32), (one * sin_of).to(dtype).to(tl.float32)
    return (along_one + across_one).to(dtype), (along_two + across_two).to(dtype)


@card_kernel(_gates)
def _silu_and_multiply(gate, up, out, width, gate_stride, up_stride, block: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(1).to(tl.int64)
    places = tl.program_id(0) * block + tl.arange(0, block)
    inside = places < width
    values = tl.load(gate + row * gate_stride + places, mask=inside, other=0.0)
    dtype = values.dtype
    wide = values.to(tl.float32)
    silu = (wide / (1.0 + tl.exp(-wide))).to(dtype).to(tl.float32)
    more = tl.load(up + row * up_stride + places, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * width + places, (silu * more).to(dtype), mask=inside)
