"""Weights in fp8 as a card holds them: their numbers, checkpoints in fp8, and 16-bit weights that are made fp8."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoModelForCausalLM

from qserve.engines.transformers.kernels import quantized_products
from qserve.errors import BrokenCheckpoint, UsageError
from qserve.model.cuda.products import BY_PIECES, KERNEL, by_pieces
from qserve.model.fp8 import trial
from qserve.model.fp8.experts import Fp8Experts
from qserve.model.fp8.linear import Fp8Linear, fp8_linears
from qserve.model.fp8.loading import fp8_as_stored, fp8_in_flight, is_held
from qserve.model.fp8.products import CHOSEN, PRODUCTS, SCALED, by_scales, multiply, rounded
from qserve.model.fp8.weight import BLOCKS, CODES, ROWS, Fp8Weight, quantized_rows
from qserve.model.quantize import in_flight_config
from qserve.model.stored.arguments import configured, stored_arguments, stored_config
from tests.tiny.engine.families import build
from tests.tiny.engine.loading import plan_of
from tests.tiny.engine.stored_checkpoints import FP8, INT8, Packer, as_fp8, as_int8, compressed, make_of

KEPT = ("lm_head", "mlp.gate")
ROW_SCALES = compressed("float-quantized", {"num_bits": 8, "type": "float", "strategy": "channel"})


@pytest.fixture(autouse=True)
def _inference() -> Any:
    with torch.no_grad():
        yield
    CHOSEN.clear()


def as_rows(stem: str, weight: torch.Tensor) -> dict[str, torch.Tensor]:
    """A scale a row, as compressed-tensors stores it."""
    codes, scales = quantized_rows(weight)
    return {f"{stem}.weight": codes, f"{stem}.weight_scale": scales.bfloat16()}


def some_weight(outputs: int, inputs: int, block: tuple[int, int]) -> tuple[Fp8Weight, torch.Tensor]:
    """Codes of all sizes, and what they stand for in float64."""
    generator = torch.Generator().manual_seed(outputs + inputs)
    codes = (torch.randn(outputs, inputs, generator=generator) * 90).clamp(-448, 448).to(CODES)
    scales = torch.rand(-(-outputs // block[0]), -(-inputs // block[1]), generator=generator) / 100
    wide = scales.double().repeat_interleave(block[0], 0)[:outputs].repeat_interleave(block[1], 1)[:, :inputs]
    return Fp8Weight(codes, scales, block), codes.double() * wide


def off_by(said: torch.Tensor, meant: torch.Tensor) -> float:
    return float((said.double() - meant).abs().max() / meant.abs().max())


WEIGHTS = [(96, 160, (1, 160)), (256, 384, (128, 128)), (200, 300, (128, 128)), (72, 64, (72, 64)), (72, 64, (64, 64))]


@pytest.mark.parametrize(("outputs", "inputs", "block"), WEIGHTS)
def test_pieces_are_what_the_codes_stand_for(
    outputs: int, inputs: int, block: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks that are cut off among them; pieces begin in the middle of a block, and none is larger than it may be."""
    weight, numbers = some_weight(outputs, inputs, block)
    assert weight.kind == (ROWS if block[0] == 1 else BLOCKS)
    monkeypatch.setattr(quantized_products, "SCRATCH_BYTES", 50 * inputs * 4)
    seen: list[int] = []
    unpack = Fp8Weight.unpack
    monkeypatch.setattr(
        Fp8Weight, "unpack", lambda self, start, out: (seen.append(len(out)), unpack(self, start, out))[1]
    )
    rows, bias = torch.randn(7, inputs), torch.randn(outputs)
    meant = rows.double() @ numbers.T + bias.double()
    assert off_by(by_pieces(rows, weight, bias), meant) < 1e-6
    assert max(seen) == 50 and sum(seen) == outputs
    assert off_by(multiply(rows[None].bfloat16(), weight, bias.bfloat16())[0], meant) < 0.02


def test_rows_become_fp8_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest number of a row is the largest code; a row of zeros stays one."""
    weight = torch.randn(3, 40, 64) * torch.logspace(-4, 2, 40)[:, None]
    weight[1, 5] = 0
    whole = quantized_rows(weight.bfloat16())
    monkeypatch.setattr(quantized_products, "SCRATCH_BYTES", 7 * 64 * 4)
    codes, scales = quantized_rows(weight.bfloat16())
    assert torch.equal(codes.view(torch.uint8), whole[0].view(torch.uint8)) and torch.equal(scales, whole[1])
    assert (codes.dtype, codes.shape, scales.shape) == (CODES, (3, 40, 64), (3, 40, 1))
    off = (codes.double() * scales.double() - weight.bfloat16().double()).abs()
    assert bool((off <= weight.abs().amax(-1, keepdim=True) / 27).all())  # half a step of 3 bits below the largest
    assert bool((codes.float().abs().amax(-1)[weight.abs().amax(-1) > 0] == 448).all())


@pytest.mark.parametrize("num", [1, 5, 70])
def test_torch_s_product_of_rows_in_fp8(num: int) -> None:
    """On a CPU as on a card; the rows' own rounding is all that it adds."""
    weight, numbers = some_weight(96, 160, (1, 160))
    rows, bias = torch.randn(num, 160).bfloat16(), torch.randn(96).bfloat16()
    said = by_scales(rows, weight, bias)
    assert said.dtype == torch.bfloat16
    assert off_by(said, rounded(rows, weight).double() @ numbers.T + bias.double()) < 0.01
    assert off_by(said, rows.double() @ numbers.T + bias.double()) < 0.06


def test_rows_in_blocks_are_rounded_by_128_inputs() -> None:
    weight, _ = some_weight(128, 256, (128, 128))
    rows = torch.cat([torch.randn(3, 128), 1000 * torch.randn(3, 128)], 1).bfloat16()
    off = (rounded(rows, weight) - rows.float()).abs()
    assert float(off[:, :128].max()) < 0.3 and float(off[:, :128].max()) > 0


FORMATS: dict[str, tuple[Packer, dict[str, Any]]] = {"blocks": (as_fp8, FP8), "rows": (as_rows, ROW_SCALES)}


def written(folder: Path, family: str, how: str = "", **sizes: int) -> Path:
    """A checkpoint of random weights in bf16, or packed as `how` says."""
    build(family, **sizes).bfloat16().save_pretrained(folder / "plain")
    return folder / "plain" if not how else Path(make_of(folder / "plain", folder / how, *FORMATS[how]))


def loaded_as_stored(folder: Path, **more: Any) -> Any:
    stored = stored_config(folder)
    assert stored is not None and is_held(folder, stored)
    config = configured(folder, fp8_as_stored(folder, stored))
    return AutoModelForCausalLM.from_pretrained(folder, config=config, dtype=torch.bfloat16, **more).eval()


def dequantized(folder: Path, plain: Path) -> Any:
    """The library's model of the same numbers, each tensor unpacked by itself and written as an ordinary one."""
    made = folder.with_name("dequantized")
    shutil.copytree(plain, made)
    tensors, state = load_file(folder / "model.safetensors"), load_file(plain / "model.safetensors")
    for name in [name for name in tensors if name.endswith(("weight_scale_inv", "weight_scale"))]:
        scales, stem = tensors[name].float(), name.rpartition(".")[0]
        codes = tensors[f"{stem}.weight"].float()
        by_row = scales.repeat_interleave(len(codes) // len(scales), 0)
        state[f"{stem}.weight"] = (codes * by_row.repeat_interleave(codes.shape[1] // scales.shape[1], 1)).bfloat16()
    save_file(state, made / "model.safetensors", {"format": "pt"})
    return AutoModelForCausalLM.from_pretrained(made, dtype=torch.bfloat16).eval()


@pytest.mark.parametrize(
    ("family", "how", "sizes"),
    [
        ("qwen3", "blocks", {"inner": 128}),
        ("qwen3", "rows", {}),
        ("qwen3-moe", "blocks", {"expert_width": 64}),
        ("qwen3-moe", "rows", {}),
        ("qwen3.5-moe", "rows", {}),
    ],
)
def test_a_checkpoint_in_fp8_says_what_its_numbers_say(
    family: str, how: str, sizes: dict[str, int], tmp_path: Path
) -> None:
    """Unpacked by the library's classes; what the file has in fp8 is in fp8, and its scales are in float32."""
    folder = written(tmp_path, family, how, **sizes)
    ours, theirs = loaded_as_stored(folder), dequantized(folder, tmp_path / "plain")
    ids = torch.arange(3, 40)[None]
    said, meant = ours(ids).logits.float(), theirs(ids).logits.float()
    assert off_by(said, meant.double()) < 0.02
    packed = sum(one.nbytes for one in load_file(folder / "model.safetensors").values() if one.dtype == CODES)
    named = dict(ours.named_parameters())
    assert sum(one.nbytes for one in named.values() if one.dtype == CODES) == packed > 0
    assert {one.dtype for name, one in named.items() if "_scale" in name} == {torch.float32}
    is_sparse = "moe" in family
    assert any(isinstance(one, Fp8Experts) for one in ours.modules()) == is_sparse
    assert not is_sparse or not any(".experts." in name and one.dtype == torch.bfloat16 for name, one in named.items())


@pytest.mark.parametrize("block", [(64, 64), (1, 96)])
def test_experts_whose_gate_ends_within_a_block(block: tuple[int, int]) -> None:
    """Gate and up have blocks of their own; each token's experts, in float64, weighted and added."""
    torch.manual_seed(2)
    hidden, inner, num = 96, 80, 4
    gate_scales = (-(-inner // block[0]), -(-hidden // block[1])) if block[0] > 1 else (inner, 1)
    down_scales = (-(-hidden // block[0]), -(-inner // block[1])) if block[0] > 1 else (hidden, 1)
    plain: Any = nn.Module()
    plain.num_experts, plain.hidden_dim, plain.intermediate_dim, plain.act_fn = num, hidden, inner, nn.SiLU()
    experts = Fp8Experts(plain, "_scale_inv", gate_scales, down_scales, block if block[0] > 1 else None)
    experts.to_empty(device="cpu")
    numbers = []
    for expert in range(num):
        parts = [torch.randn(*shape) for shape in ((inner, hidden), (inner, hidden), (hidden, inner))]
        codes = [(part * 50).to(CODES) for part in parts]
        scales = [torch.rand(shape) / 500 for shape in (gate_scales, gate_scales, down_scales)]
        experts.gate_up_proj.data[expert] = torch.cat(codes[:2])
        experts.down_proj.data[expert] = codes[2]
        experts.get_parameter("gate_up_proj_scale_inv").data[expert] = torch.cat(scales[:2])
        experts.get_parameter("down_proj_scale_inv").data[expert] = scales[2]
        numbers.append(
            [
                code.double()
                * scale.double()
                .repeat_interleave(block[0], 0)[: len(code)]
                .repeat_interleave(block[1] if block[0] > 1 else code.shape[1], 1)[:, : code.shape[1]]
                for code, scale in zip(codes, scales, strict=True)
            ]
        )
    states = torch.randn(9, hidden)
    chosen, weights = torch.randint(0, 3, (9, 1)).repeat(1, 2) + torch.tensor([0, 1]), torch.rand(9, 2)
    meant = torch.zeros(9, hidden, dtype=torch.float64)
    for token in range(9):
        for place in range(2):
            gate, up, down = numbers[chosen[token, place]]
            row = states[token].double()
            meant[token] += weights[token, place] * (down @ (nn.functional.silu(gate @ row) * (up @ row)))
    assert off_by(experts(states, chosen, weights), meant) < 1e-5


@pytest.mark.parametrize("family", ["qwen3", "qwen3-moe"])
def test_weights_become_fp8_while_they_are_loaded(family: str, tmp_path: Path) -> None:
    """Linear layers and experts, each as `quantized_rows` has it; heads and routers stay."""
    plain = written(tmp_path, family)
    model = AutoModelForCausalLM.from_pretrained(plain, quantization_config=fp8_in_flight(KEPT), dtype=torch.bfloat16)
    as_it_is = AutoModelForCausalLM.from_pretrained(plain, dtype=torch.bfloat16)
    quantized = 0
    for name, one in as_it_is.named_parameters():
        if "_proj" not in name:
            assert torch.equal(model.get_parameter(name), one), name
            continue
        codes, scales = quantized_rows(one.data)
        assert torch.equal(model.get_parameter(name).view(torch.uint8), codes.view(torch.uint8))
        assert torch.equal(model.get_parameter(f"{name}_scale"), scales)
        quantized += 1
    assert quantized >= 24
    ids = torch.arange(3, 40)[None]
    said, meant = (one.eval()(ids).logits.float().log_softmax(-1) for one in (model, as_it_is))
    assert float((meant.exp() * (meant - said)).sum(-1).mean()) < 0.1


def test_only_a_card_makes_fp8_while_loading() -> None:
    plan = plan_of("demo", "bf16")
    quant = replace(plan.quant, scheme="fp8_per_channel", in_flight=True)
    with pytest.raises(UsageError, match="on a card to fp8_per_channel"):
        in_flight_config(replace(plan, quant=quant), torch.bfloat16)
    found = in_flight_config(replace(plan, quant=quant, on_cpu=False), torch.bfloat16)
    assert found.quant_method == "qserve-fp8-in-flight" and "lm_head" in found.kept


@pytest.mark.parametrize(("capability", "method"), [((8, 0), "qserve-fp8"), ((9, 0), "qserve-fp8"), ((7, 5), "fp8")])
def test_cards_that_hold_fp8(
    capability: tuple[int, int], method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever packages are there. Older ones have the library make it 16 bit, as they are planned."""
    folder = written(tmp_path, "qwen3", "blocks", inner=128)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: capability)
    plan = plan_of("demo", "bf16")
    on_card = replace(plan, on_cpu=False, placement=replace(plan.placement, device_map="cuda:0"))
    found = stored_arguments(folder, on_card)["config"].quantization_config
    assert found["quant_method"] == method and found.get("dequantize", False) == (method == "fp8")
    assert not is_held(folder, INT8) or not is_held(
        Path(make_of(tmp_path / "plain", tmp_path / "int8", as_int8, INT8)), INT8
    )


def test_layers_on_disk_are_read_as_they_are_stored(tmp_path: Path) -> None:
    """Under accelerate's hooks, joined experts among them; none of them is tried on a card."""
    folder = written(tmp_path, "qwen3-moe", "blocks", expert_width=64)
    places = {"model.embed_tokens": "cpu", "model.norm": "cpu", "model.rotary_emb": "cpu", "lm_head": "cpu"}
    places |= {f"model.layers.{i}": "disk" if i else "cpu" for i in range(4)}
    apart = loaded_as_stored(folder, device_map=places, offload_folder=str(tmp_path / "offloaded"))
    assert apart.model.layers[1].mlp.experts.down_proj.device.type == "meta"
    ids = torch.arange(3, 40)[None]
    assert torch.equal(apart(ids).logits, loaded_as_stored(folder)(ids).logits)
    assert not any(layer.weight.device.type == "meta" for layer in fp8_linears(apart))


@pytest.mark.parametrize("family", ["qwen3", "qwen3-moe"])
def test_a_checkpoint_of_another_shape_is_refused(family: str, tmp_path: Path) -> None:
    folder = written(tmp_path, family, "blocks", **({"inner": 128} if family == "qwen3" else {"expert_width": 64}))
    config = json.loads((folder / "config.json").read_text())
    for changes, said in (
        ({"quantization_config": {**FP8, "weight_block_size": [32, 32]}}, "is weight_block_size of another model"),
        ({"intermediate_size": 256, "moe_intermediate_size": 128}, "is it of another model"),
    ):
        (folder / "config.json").write_text(json.dumps({**config, **changes}))
        with pytest.raises(BrokenCheckpoint, match=said):
            loaded_as_stored(folder)


def some_model() -> nn.Sequential:
    torch.manual_seed(0)
    layers = []
    for has_bias in (True, False):
        layer = Fp8Linear(nn.Linear(64, 64, bias=has_bias).bfloat16(), "weight_scale", (64, 1), None)
        layer.to_empty(device="cpu")
        layer.weight.data, layer.get_parameter("weight_scale").data = quantized_rows(torch.randn(64, 64))
        layers.append(layer)
    if layers[0].bias is not None:
        layers[0].bias.data = torch.randn(64).bfloat16()
    return nn.Sequential(*layers).requires_grad_(False)


def chosen(kernel: Any, seconds: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> trial.Fp8Trials:
    monkeypatch.setitem(PRODUCTS, KERNEL, kernel)
    monkeypatch.setattr(trial, "_on_card", lambda call: seconds[call.args[0]])
    return trial.choose_fp8_products(some_model(), torch.bfloat16)


def test_the_fastest_right_product_is_taken(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """And one that is wrong or that a card refuses never, however fast; of many rows no kernel is asked."""
    caplog.set_level("INFO", logger="qserve.worker")
    trials = chosen(by_pieces, {KERNEL: 1.0, SCALED: 2.0, BY_PIECES: 3.0}, monkeypatch)
    assert [trials.chosen[key] for key in trials.chosen] == [KERNEL] * 4 + [SCALED] and not caplog.records
    assert trials.sentence == (
        "products by weights in fp8: 1 row by Triton's kernel, 2 to 16 by Triton's kernel, 17 to 32 by Triton's "
        "kernel, 33 to 64 by Triton's kernel, more rows by torch's scaled product"
    )
    taken: list[str] = []
    for name, product in list(PRODUCTS.items()):
        monkeypatch.setitem(
            PRODUCTS, name, lambda *of, name=name, product=product: (taken.append(name), product(*of))[1]
        )
    layer = some_model()[0]
    for num in (1, 64, 65):
        layer(torch.randn(num, 64).bfloat16())
    assert taken == [KERNEL, KERNEL, SCALED]

    def refused(*_: Any) -> torch.Tensor:
        raise RuntimeError("ptxas is not there")

    fast = {KERNEL: 1.0, SCALED: 2.0, BY_PIECES: 1.5}
    for broken, reason in (
        (refused, "ptxas is not there"),
        (lambda rows, weight, bias: 1.1 * by_pieces(rows, weight, bias), "wrong by 0."),
    ):
        caplog.clear()
        trials = chosen(broken, fast, monkeypatch)
        assert set(trials.chosen.values()) == {BY_PIECES}
        assert reason in trials.sentence and [reason in one for one in caplog.messages] == [True]


def test_nothing_is_tried_on_a_cpu() -> None:
    assert trial.use_fp8_products(some_model(), torch.bfloat16) == () and not CHOSEN


_KERNEL = """
import torch
from qserve.model.cuda.operations import by_meaning
from qserve.model.fp8 import triton_product
from qserve.model.fp8.weight import CODES, Fp8Weight

generator = torch.Generator().manual_seed(0)


def check(outputs, inputs, block, num, dtype, tolerance):
    codes = (torch.randn(outputs, inputs, generator=generator) * 60).clamp(-448, 448).to(CODES)
    codes[0, :16] = torch.arange(16, dtype=torch.uint8).view(CODES)  # below the least exponent
    scales = torch.rand(-(-outputs // block[0]), -(-inputs // block[1]), generator=generator) / 100
    weight = Fp8Weight(codes, scales, block)
    rows = torch.randn(num, inputs, generator=generator).to(dtype)
    bias = torch.randn(outputs, generator=generator).to(dtype) if num % 2 else None
    said, meant = triton_product.product(rows, weight, bias).float(), by_meaning(rows, weight, bias).float()
    off = float((said - meant).abs().max() / meant.abs().max())
    assert off < tolerance, (block, dtype, num, off)


check(40, 176, (1, 176), 1, torch.float32, 1e-6)
check(40, 176, (1, 176), 5, torch.float32, 1e-6)
check(200, 320, (128, 128), 1, torch.float32, 1e-6)
check(200, 320, (128, 128), 4, torch.float32, 1e-6)
check(136, 1300, (128, 128), 1, torch.float16, 2e-3)
check(72, 256, (128, 128), 64, torch.float16, 2e-3)
check(72, 256, (72, 256), 17, torch.float16, 2e-3)
try:
    check(72, 192, (64, 64), 17, torch.float16, 2e-3)
except ValueError as error:
    assert "blocks of 64 columns" in str(error)
else:
    raise AssertionError("a step would read the scale of another block")
"""


def test_triton_s_kernel_says_what_the_weights_mean() -> None:
    """In Triton's interpreter, whose `dot` takes no bf16; a card compares the same at start."""
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", _KERNEL], env=environment, check=True, timeout=200)
