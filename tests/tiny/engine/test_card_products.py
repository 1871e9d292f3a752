"""Products of a card by weights that bitsandbytes holds: what they say, which are taken, and what they ask for."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from bench.step_counts import hold
from qserve.engines.transformers.kernels import quantized_products
from qserve.engines.transformers.kernels.quantized_products import ROW_TILES
from qserve.engines.transformers.worker.decoding.choose import can_be_captured, choose_layers
from qserve.model.cuda import products, trial
from qserve.model.cuda.linear import CardLinear, compute_on_cards
from qserve.model.cuda.operations import by_meaning
from qserve.model.cuda.products import BY_PIECES, CHOSEN, KERNEL, LIBRARY, REFUSED, by_pieces, by_rows, key_of
from qserve.model.cuda.trial import choose_products
from qserve.model.measured_weights import measured_tensors, weights_bytes
from tests.tiny.engine.families import build

pytest.importorskip("bitsandbytes")


@pytest.fixture(autouse=True)
def _nothing_chosen() -> Iterator[None]:
    yield
    CHOSEN.clear()
    REFUSED.clear()


def layers(held: str, outputs: int = 72, inputs: int = 128) -> list[CardLinear]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(inputs, outputs), nn.Linear(inputs, outputs, bias=False)).bfloat16()
    hold(model, held)
    return list(model)  # type: ignore[arg-type]


def off_by(said: torch.Tensor, meant: torch.Tensor) -> float:
    return float((said.float() - meant.float()).abs().max() / meant.float().abs().max())


@pytest.mark.parametrize("kind", ["int8", "nf4", "fp4"])
def test_layers_take_over_what_bitsandbytes_holds(kind: str) -> None:
    """No copy of a weight, and what bitsandbytes itself unpacks."""
    import bitsandbytes as bnb

    torch.manual_seed(0)
    plain = nn.Linear(128, 64).requires_grad_(False)
    held: Any
    if kind == "int8":
        held = bnb.nn.Linear8bitLt(128, 64, has_fp16_weights=False, threshold=6.0)
        scales = plain.weight.data.abs().amax(dim=1)
        held.state.CB = (127 * plain.weight.data / scales[:, None]).round().to(torch.int8)
        held.state.SCB, held.weight.SCB = scales, None
        numbers = held.state.CB * held.state.SCB[:, None] / 127
        place = held.state.CB.data_ptr()
    else:
        held = bnb.nn.Linear4bit(128, 64, quant_type=kind, compress_statistics=True)
        packed, state = bnb.functional.quantize_4bit(plain.weight.data, quant_type=kind, compress_statistics=True)
        held.weight = bnb.nn.Params4bit(packed, requires_grad=False, quant_type=kind, bnb_quantized=True)
        held.weight.quant_state = state
        numbers, place = bnb.functional.dequantize_4bit(packed, state), held.weight.data_ptr()
    held.bias = plain.bias
    model = nn.Sequential(held)
    before = weights_bytes(model)
    assert compute_on_cards(model) == 0  # a CPU has its own
    assert compute_on_cards(model, "cpu") == 1
    ours: Any = model[0]
    assert ours.weight.data_ptr() == place and weights_bytes(model) <= before
    assert {tensor.dtype for tensor in measured_tensors(model)} >= {kind}
    rows = torch.randn(5, 128)
    meant = torch.nn.functional.linear(rows, numbers.float(), plain.bias)
    assert off_by(model(rows), meant) < 1e-5
    assert off_by(by_pieces(rows, ours.held, ours.bias), meant) < 1e-5
    assert model(rows[None]).shape == (1, 5, 64)


@pytest.mark.parametrize("held", ["int8", "nf4"])
def test_pieces_ask_for_nothing_and_are_bounded(held: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without values there is nothing that could be asked for: shapes alone are enough."""
    monkeypatch.setattr(quantized_products, "SCRATCH_BYTES", 20 * 128 * 2)
    with_bias, without = layers(held)
    rows = torch.randn(70, 128).bfloat16()
    for layer in (with_bias, without):
        assert quantized_products.piece_rows(layer.out_features, layer.in_features, 2) == 20
        assert off_by(by_pieces(rows, layer.held, layer.bias), by_meaning(rows, layer.held, layer.bias)) < 0.01
    nowhere = with_bias.to("meta")
    assert by_pieces(rows.to("meta"), nowhere.held, nowhere.bias).shape == (70, 72)
    assert nowhere(rows.to("meta")).shape == (70, 72)


def test_rows_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[str] = []
    for name in products.PRODUCTS:
        monkeypatch.setitem(products.PRODUCTS, name, lambda *of, name=name: taken.append(name))
    int8, nf4 = layers("int8")[0].held, layers("nf4")[0].held
    for num in (1, 4, 5, 64, 65):
        by_rows(torch.zeros(num, 128), nf4, None)
    assert taken == [LIBRARY, LIBRARY, BY_PIECES, BY_PIECES, BY_PIECES]
    for num in (16, 64):
        CHOSEN[key_of(torch.zeros(num, 128), int8)] = KERNEL  # type: ignore[index]
    taken.clear()
    for num in (1, 2, 16, 17, 33, 65):
        by_rows(torch.zeros(num, 128), int8, None)
    assert taken == [BY_PIECES, KERNEL, KERNEL, BY_PIECES, KERNEL, BY_PIECES]


def chosen(held: str, kernel: Any, seconds: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> trial.Trials:
    monkeypatch.setitem(products.PRODUCTS, KERNEL, kernel)
    monkeypatch.setattr(
        trial, "_on_card", lambda call: seconds[next(n for n, p in products.PRODUCTS.items() if p in call.args)]
    )
    return choose_products(nn.Sequential(*layers(held)), torch.bfloat16)


def test_the_fastest_right_product_is_taken(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """And one that is wrong, raises or unpacks whole weights never, however fast; loudly."""
    fast = {KERNEL: 1.0, LIBRARY: 2.0, BY_PIECES: 3.0}
    trials = chosen("int8", by_meaning, fast, monkeypatch)
    assert set(trials.chosen.values()) == {KERNEL} and not trials.passed_over and not caplog.records
    assert trials.sentence == (
        "products by quantized weights: 1 row by Triton's kernel, 2 to 16 by Triton's kernel, 17 to 32 by Triton's "
        "kernel, 33 to 64 by Triton's kernel, more rows unpacked by pieces"
    )
    assert set(chosen("int8", by_meaning, {KERNEL: 4.0, BY_PIECES: 3.0}, monkeypatch).chosen.values()) == {BY_PIECES}

    def raises(*_: Any) -> torch.Tensor:
        raise RuntimeError("ptxas is not there")

    for broken, reason in (
        (raises, "ptxas is not there"),
        (lambda r, w, b: 1.06 * by_meaning(r, w, b), "wrong by 0.0"),
    ):
        caplog.clear()
        trials = chosen("int8", broken, fast, monkeypatch)
        assert set(trials.chosen.values()) == {BY_PIECES}
        assert reason in trials.sentence and reason in caplog.text
        assert len(caplog.messages) == 1 and caplog.messages[0].startswith("int8 product is refused on this card (")
        assert set(REFUSED) == set(trials.chosen) and all(reason in why for why in REFUSED.values())
    assert not chosen("int8", by_meaning, fast, monkeypatch).refused and not REFUSED
    counts = iter(range(0, 10**12, 10**9))
    monkeypatch.setattr(trial, "_allocated_so_far", lambda device: next(counts))
    assert "it unpacks whole weights" in chosen("int8", by_meaning, fast, monkeypatch).passed_over[KERNEL]


@pytest.mark.parametrize("fastest", [KERNEL, LIBRARY, BY_PIECES])
def test_of_4_bits_all_are_tried_for_all_rows(monkeypatch: pytest.MonkeyPatch, fastest: str) -> None:
    seconds = {name: float(1 + (name != fastest)) for name in (KERNEL, LIBRARY, BY_PIECES)}
    trials = chosen("nf4", by_meaning, seconds, monkeypatch)
    assert [trials.chosen[key] for key in trials.chosen] == [fastest] * len(ROW_TILES)


def test_their_steps_are_captured_and_bitsandbytes_own_are_not() -> None:
    model = build("qwen3")
    assert can_be_captured(model)
    hold(model.get_decoder(), "nf4")
    assert can_be_captured(model) and choose_layers(model).dense is not None
    model.model.layers[0].mlp.up_proj = type("Linear8bitLt", (nn.Linear,), {})(64, 64)
    assert not can_be_captured(model)


_KERNELS = """
import torch
from bitsandbytes.functional import quantize_4bit
from qserve.model.cuda import triton_products
from qserve.model.cuda.operations import by_meaning
from qserve.model.cuda.weights import FourBitWeight, Int8Weight

generator = torch.Generator().manual_seed(0)


def int8(outputs, inputs):
    codes = torch.randint(-127, 128, (outputs, inputs), generator=generator).to(torch.int8)
    return Int8Weight(codes, torch.rand(outputs, generator=generator) / 1000)


def four_bit(kind, outputs, inputs, block, is_nested):
    numbers = torch.randn(outputs, inputs, generator=generator)
    packed, state = quantize_4bit(numbers, blocksize=block, quant_type=kind, compress_statistics=is_nested)
    nested = (state.state2.code, state.state2.absmax, state.offset.view(1)) if is_nested else None
    return FourBitWeight(kind, packed.flatten(), state.code, state.absmax, nested, block, inputs)


def check(weight, dtype, num, tolerance):
    rows = torch.randn(num, weight.inputs, generator=generator).to(dtype)
    bias = torch.randn(weight.outputs, generator=generator).to(dtype) if num % 2 else None
    said, meant = triton_products.product(rows, weight, bias).float(), by_meaning(rows, weight, bias).float()
    off = float((said - meant).abs().max() / meant.abs().max())
    assert off < tolerance, (weight.kind, dtype, num, off)


check(int8(40, 176), torch.float32, 1, 1e-6)
check(int8(24, 80), torch.bfloat16, 1, 1e-2)
check(int8(40, 176), torch.float32, 5, 1e-6)
check(int8(24, 80), torch.float16, 64, 2e-3)
check(four_bit("nf4", 40, 192, 64, True), torch.float32, 5, 1e-6)
check(four_bit("fp4", 24, 64, 64, True), torch.float16, 64, 2e-3)
check(four_bit("nf4", 24, 256, 128, False), torch.float32, 17, 1e-6)
"""


def test_triton_s_kernels_say_what_the_weights_mean() -> None:
    """In Triton's interpreter, whose `dot` takes no bf16; a card compares the same at start (`choose_products`)."""
    pytest.importorskip("triton")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", _KERNELS], env=environment, check=True, timeout=200)
