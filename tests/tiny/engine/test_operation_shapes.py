"""What torch is told of our operations without values, by which graphs are traced and memory is planned: it is true."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.step_counts import hold
from qserve.engines.transformers.worker.decoding.operations import PLAIN, REGISTERED
from qserve.model.cuda.linear import CardLinear

DTYPES = st.sampled_from([torch.float32, torch.bfloat16, torch.float16])
FEW = st.integers(1, 5)
_CHECKS = ("test_schema", "test_faketensor")
few_examples = settings(max_examples=20)


def told(value: Any) -> Any:
    """All of a tensor but its values."""
    if not isinstance(value, torch.Tensor):
        return value
    return tuple(value.shape), value.dtype, value.stride(), value.is_contiguous()


def check(operation: Any, plain: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """On meta as on the CPU, by torch's own comparison as well; and a card's plain operations say the same of it."""
    nowhere = [one.to("meta") if isinstance(one, torch.Tensor) else one for one in arguments]
    said, meant = operation(*nowhere), operation(*(one.clone() if torch.is_tensor(one) else one for one in arguments))
    assert told(said) == told(meant) == told(plain(*nowhere))
    assert said is None or said.device.type == "meta"
    torch.library.opcheck(operation.default, arguments, test_utils=_CHECKS)


@few_examples
@given(FEW, st.integers(1, 70), DTYPES, st.booleans())
def test_add_rms_norm(tokens: int, width: int, dtype: torch.dtype, adds: bool) -> None:
    states, delta, weight = torch.ones(tokens, width).to(dtype), torch.ones(tokens, width).to(dtype), torch.ones(width)
    arguments = states, delta if adds else None, weight.to(dtype), 1e-6
    check(REGISTERED["add_rms_norm"], PLAIN["add_rms_norm"], arguments)


@few_examples
@given(FEW, st.integers(1, 70), DTYPES)
def test_silu_and_multiply(tokens: int, width: int, dtype: torch.dtype) -> None:
    check(REGISTERED["silu_and_multiply"], PLAIN["silu_and_multiply"], tuple(torch.ones(2, tokens, width).to(dtype)))


@few_examples
@given(FEW, st.integers(1, 4), st.integers(1, 3), st.sampled_from([2, 64, 96, 128]), DTYPES, st.booleans())
def test_rotate_and_store(
    tokens: int, group: int, kv_heads: int, size: int, dtype: torch.dtype, has_norms: bool
) -> None:
    def ones(*shape: int) -> torch.Tensor:
        return torch.ones(*shape).to(dtype)

    norms = (ones(size), ones(size), 1e-6) if has_norms else (None, None, 0.0)
    arguments = (
        ones(tokens, group * kv_heads, size),
        ones(tokens, kv_heads, size),
        ones(tokens, kv_heads, size),
        *norms,
        ones(tokens, size),
        ones(tokens, size),
        ones(9, kv_heads, size),
        ones(9, kv_heads, size),
        torch.arange(tokens),
    )
    check(REGISTERED["rotate_and_store"], PLAIN["rotate_and_store"], arguments)


@pytest.mark.parametrize("held", ["int8", "nf4", "fp4"])
@few_examples
@given(st.lists(FEW, max_size=2), st.integers(1, 9), st.integers(1, 3), DTYPES, st.booleans())
def test_products_by_quantized_weights(
    held: str, rows: list[int], outputs: int, blocks: int, dtype: torch.dtype, has_bias: bool
) -> None:
    pytest.importorskip("bitsandbytes")
    model = torch.nn.Sequential(torch.nn.Linear(64 * blocks, 2 * outputs, bias=has_bias)).to(dtype)
    hold(model, held)
    layer: Any = model[0]
    assert isinstance(layer, CardLinear)
    x = torch.ones(*rows, 64 * blocks).to(dtype)
    meant, said = layer(x), layer.to("meta")(x.to("meta"))
    assert told(said) == told(meant) and said.device.type == "meta"
