"""Gated DeltaNet in C against the library's modules: outputs and states, over shapes, dtypes and pieces of a text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from transformers import DynamicCache, Qwen3_5TextConfig, Qwen3NextConfig
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5GatedDeltaNet
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet

from qserve.model.cpu import build
from qserve.model.cpu.delta import DeltaNet, replace_delta_nets
from tests.tiny.engine.compilers import compiled_by

pytestmark = pytest.mark.skipif(build.why_none() is not None, reason=str(build.why_none()))

# Key heads, value heads, sizes of both, taps: as published, shared key heads, and sizes that are no whole vectors.
SHAPES = [(2, 2, 128, 128, 4), (2, 4, 16, 24, 4), (1, 3, 20, 7, 4), (3, 6, 64, 160, 2), (2, 2, 32, 48, 5)]
HIDDEN = 48
# Of these modules the library's float32 is off by up to 5e-4 from float64, and delta.c by up to 9e-5.
CLOSE = {"atol": 2e-3, "rtol": 2e-3}


@pytest.fixture(scope="module", params=("best", "without AVX512", "plain"), autouse=True)
def compiler(request: pytest.FixtureRequest) -> Iterator[None]:
    """The library as this processor gets it, and as poorer ones do."""
    with compiled_by(request.param):
        yield


def config_of(kind: type[Any], shape: tuple[int, ...]) -> Any:
    sizes = {
        "linear_num_key_heads": shape[0],
        "linear_num_value_heads": shape[1],
        "linear_key_head_dim": shape[2],
        "linear_value_head_dim": shape[3],
        "linear_conv_kernel_dim": shape[4],
    }
    return kind(hidden_size=HIDDEN, num_hidden_layers=4, vocab_size=10, **sizes)


def module_of(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[Any, Any]:
    """(a module of the library's with weights of usual sizes, its config)."""
    torch.manual_seed(sum(shape))
    by_head = name == "qwen3-next"
    config = config_of(Qwen3NextConfig if by_head else Qwen3_5TextConfig, shape)
    module = (Qwen3NextGatedDeltaNet if by_head else Qwen3_5GatedDeltaNet)(config, 0)
    for parameter in module.parameters():
        parameter.data = parameter.data + 0.3 * torch.randn_like(parameter)
    return module.to(dtype).eval(), config


@torch.no_grad()
def outputs(module: Any, config: Any, pieces: list[torch.Tensor]) -> tuple[list[torch.Tensor], Any]:
    """Of pieces [batch, tokens, hidden], one after the other over one cache."""
    cache = DynamicCache(config=config)
    return [module(hidden_states=piece, cache_params=cache).float() for piece in pieces], cache.layers[0]


def pieces_of(lengths: list[int], dtype: torch.dtype) -> list[torch.Tensor]:
    torch.manual_seed(7)
    return [torch.randn(3, length, HIDDEN).to(dtype) for length in lengths]


@pytest.mark.parametrize("name", ["qwen3.5", "qwen3-next"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_what_the_library_says_and_keeps(name: str, shape: tuple[int, ...]) -> None:
    """Prompts in pieces, of one token too, then tokens one by one."""
    module, config = module_of(name, shape, torch.float32)
    pieces = pieces_of([1, 37, 70, 1, 1, 2, 1], torch.float32)
    true, true_layer = outputs(module, config, pieces)
    undo = replace_delta_nets(module)
    assert "forward" in vars(module)
    got, layer = outputs(module, config, pieces)
    undo()
    assert "forward" not in vars(module)
    for ours, theirs in zip(got, true, strict=True):
        torch.testing.assert_close(ours, theirs, **CLOSE)
    torch.testing.assert_close(layer.conv_states[0], true_layer.conv_states[0], atol=0, rtol=0)
    torch.testing.assert_close(layer.recurrent_states[0], true_layer.recurrent_states[0], atol=2e-4, rtol=2e-4)


def test_a_text_without_a_cache_and_with_padding() -> None:
    module, _ = module_of("qwen3.5", SHAPES[1], torch.float32)
    states = pieces_of([40], torch.float32)[0]
    mask = torch.arange(40) < torch.tensor([[40], [17], [1]])
    with torch.no_grad():
        true = module(states), module(states, attention_mask=mask)
        replace_delta_nets(module)
        got = module(states), module(states, attention_mask=mask)
    for ours, theirs in zip(got, true, strict=True):
        torch.testing.assert_close(ours, theirs, **CLOSE)


def test_in_bf16_it_is_as_close_to_float32_as_the_library() -> None:
    shape = SHAPES[0]
    exact, config = module_of("qwen3.5", shape, torch.float32)
    module, _ = module_of("qwen3.5", shape, torch.bfloat16)
    exact.load_state_dict(module.state_dict())
    pieces = pieces_of([33, 1, 1], torch.bfloat16)
    true, _ = outputs(exact, config, [piece.float() for piece in pieces])
    theirs, _ = outputs(module, config, pieces)
    replace_delta_nets(module)
    ours, layer = outputs(module, config, pieces)
    assert layer.recurrent_states[0].dtype == torch.float32
    for mine, other, meant in zip(ours, theirs, true, strict=True):
        assert (mine - meant).abs().mean() <= 1.1 * (other - meant).abs().mean()


def test_what_is_not_a_number_stays_in_its_row() -> None:
    module, config = module_of("qwen3.5", SHAPES[1], torch.float32)
    pieces = pieces_of([5, 1], torch.float32)
    true, _ = outputs(module, config, pieces)
    pieces[0][1, 2] = float("nan")
    replace_delta_nets(module)
    got, _ = outputs(module, config, pieces)
    for ours, theirs in zip(got, true, strict=True):
        torch.testing.assert_close(ours[[0, 2]], theirs[[0, 2]], **CLOSE)
        assert ours[1, -1].isnan().all()


def test_gradients_are_the_librarys() -> None:
    module, _ = module_of("qwen3.5", SHAPES[1], torch.float32)
    replace_delta_nets(module)
    module(pieces_of([5], torch.float32)[0]).sum().backward()
    assert module.A_log.grad.abs().sum() > 0


def test_other_dtypes_and_other_modules_are_left_alone() -> None:
    module, _ = module_of("qwen3.5", SHAPES[1], torch.float16)
    assert DeltaNet.of(module) is None
    assert DeltaNet.of(torch.nn.Linear(3, 4)) is None
