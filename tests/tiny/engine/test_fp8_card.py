"""Weights in fp8 on a card that is not there: which products are called on which, and what none of them makes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoConfig, Qwen3ForCausalLM
from transformers.quantizers.auto import AutoHfQuantizer

from qserve.core.hardware import Device, formats_of
from qserve.detect import detect
from qserve.engines.transformers.kernels import quantized_products
from qserve.engines.transformers.kernels.refusals import FP8_EXPERTS
from qserve.engines.transformers.worker.decoding.body import DenseSteps
from qserve.engines.transformers.worker.decoding.choose import can_be_captured
from qserve.hub import resolve
from qserve.model.cuda.before_load import product_trials_ahead
from qserve.model.cuda.products import BY_PIECES, KERNEL
from qserve.model.fp8 import experts_trial, trial
from qserve.model.fp8.choices import chosen_in_fp8
from qserve.model.fp8.loading import fp8_as_stored, fp8_in_flight
from qserve.model.fp8.products import CHOSEN, MANY, PRODUCTS, SCALED, candidates
from qserve.model.fp8.routing import GROUPED
from qserve.model.fp8.trial import Fp8Shape
from qserve.model.fp8.weight import CODES, ROWS, Fp8Weight
from qserve.model.load import load
from qserve.model.placement import skeleton
from qserve.model.stored.arguments import configured
from qserve.planner import PlanRequest, make_plan
from tests.tiny.engine.fake_card import FakeCard, fake_card
from tests.tiny.engine.fake_models import VOCABULARY, build, in_place, stepping
from tests.tiny.engine.running import sequence

CUDA = torch.device("cuda", 0)
BLOCK = {"quant_method": "fp8", "weight_block_size": [128, 128]}
SHAPE = {
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    "dtype": "bfloat16",
}
DENSE = {**SHAPE, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}
SPARSE = {
    **SHAPE,
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 128,
}


@pytest.fixture(autouse=True)
def _nothing_chosen() -> Iterator[None]:
    yield
    CHOSEN.clear()
    GROUPED.clear()


def weight_of(outputs: int, inputs: int, block: tuple[int, int]) -> Fp8Weight:
    scales = torch.empty(-(-outputs // block[0]), -(-inputs // block[1]), device=CUDA)
    return Fp8Weight(torch.empty(outputs, inputs, dtype=CODES, device=CUDA), scales, block)


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("block", [(1, 768), (128, 128)], ids=["rows", "blocks"])
@pytest.mark.parametrize(("name", "num"), [(BY_PIECES, 70), (KERNEL, 1), (KERNEL, 64), (SCALED, 1), (SCALED, 70)])
def test_products_can_be_captured(card: FakeCard, name: str, num: int, block: tuple[int, int], has_bias: bool) -> None:
    """Shapes and strides are those that torch's own checks take: they run on tensors without values as well."""
    pytest.importorskip("triton")
    rows, bias = (torch.empty(*shape, dtype=torch.bfloat16, device=CUDA) for shape in ((num, 768), (256,)))
    weight = weight_of(256, 768, block)
    with card.capture():
        said = PRODUCTS[name](rows, weight, bias if has_bias else None)
    assert (said.shape, said.dtype, said.is_contiguous()) == ((num, 256), torch.bfloat16, True)
    assert card.launched == ["_fp8_product"] * (name == KERNEL)


@pytest.mark.parametrize(
    ("capability", "rows", "blocks"),
    [
        ((8, 0), False, False),
        ((8, 9), True, False),
        ((9, 0), True, True),
        ((10, 0), True, False),
        ((12, 0), True, False),
    ],
)
def test_a_card_takes_what_it_has(
    capability: tuple[int, int], rows: bool, blocks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of many rows torch's product in fp8 where the card has it; of few the kernel that reads codes as they are."""
    monkeypatch.setattr(trial, "_why_not", runs)
    monkeypatch.setattr(trial, "_on_card", by_order)
    with fake_card(capability), torch.no_grad():
        for block, has_unit in (((1, 768), rows), ((128, 128), blocks)):
            weight = weight_of(256, 768, block)
            monkeypatch.setattr(trial, "_held", lambda model, weight=weight: [weight])
            trials = trial.choose_fp8_products(nn.Module(), torch.bfloat16)
            assert list(trials.chosen.values()) == [KERNEL] * 4 + [SCALED if has_unit else BY_PIECES]
            assert (SCALED in trials.passed_over) == (not has_unit)


def runs(name: str, weight: Fp8Weight, bias: torch.Tensor | None, rows: torch.Tensor) -> str:
    """No values to compare: what the card refuses is raised."""
    PRODUCTS[name](rows, weight, bias)
    return ""


def by_order(call: Any) -> float:
    return {KERNEL: 1.0, SCALED: 2.0, BY_PIECES: 3.0}[call.args[0]]


@pytest.mark.parametrize(
    ("outputs", "inputs", "block", "has_form"),
    [
        (256, 768, (1, 768), True),
        (250, 768, (1, 768), False),
        (256, 760, (1, 760), False),
        (256, 768, (128, 128), True),
        (256, 704, (128, 128), False),
        (192, 768, (128, 128), False),
        (256, 768, (64, 64), False),
        (256, 768, (256, 768), False),
    ],
)
def test_shapes_that_torch_s_product_takes(outputs: int, inputs: int, block: tuple[int, int], has_form: bool) -> None:
    assert list(candidates(outputs, inputs, block, 1024)) == [SCALED] * has_form + [BY_PIECES]
    assert KERNEL in candidates(outputs, inputs, block, 64)


class Largest(TorchDispatchMode):
    """The most numbers of one matrix on the card that is made in more than 8 bits.

    Before it loads, the library asks the allocator for all of a model's bytes in one row, and lets go of them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for one in tree_leaves(made):
            if isinstance(one, torch.Tensor) and one.is_cuda and one.dim() > 1 and one.element_size() > 1:
                self.most = max(self.most, one.numel())
        return made


def plan_on_h100(folder: Path, config: dict[str, Any], quant: str) -> Any:
    (folder / "config.json").write_text(json.dumps(config))
    h100 = Device("H100", "cuda", 80 * 1024**3, 0, 132, formats=formats_of((9, 0)), compute_capability=(9, 0))
    request = PlanRequest(engine="transformers", quant=quant, max_model_len=4096)
    return make_plan(resolve(str(folder)), replace(detect(), devices=(h100,)), request)


@pytest.mark.parametrize(("quant", "block"), [("fp8", None), ("auto", (128, 128))])
def test_all_that_is_tried_is_told_before_loading(
    quant: str, block: tuple[int, int] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a plan and a model without weights: while the card is empty."""
    plan = plan_on_h100(tmp_path, SPARSE if block is None else {**SPARSE, "quantization_config": BLOCK}, quant)
    assert plan.quant.scheme == ("fp8_per_channel" if block is None else "fp8")
    ahead = product_trials_ahead(plan, torch.bfloat16, lambda: skeleton(tmp_path))
    asked: list[Any] = []
    monkeypatch.setattr(trial, "tried", lambda device, groups, **_: asked.extend(groups) or {})
    shapes = [(512, 256), (256, 256), (256, 512), (256, 256), (256, 128)]  # q, k, o, experts' gate above up, and down
    weights = [Fp8Shape(*shape, *(block or (1, shape[1]))).random_weight(torch.device("cpu")) for shape in shapes]
    monkeypatch.setattr(trial, "_held", lambda model: weights)
    with pytest.raises(KeyError):  # there are no verdicts
        trial.choose_fp8_products(nn.Module(), torch.bfloat16)
    assert {one for (one,) in asked} <= set(ahead) and len(asked) == len({one.key for (one,) in asked})
    assert sum(one.name == FP8_EXPERTS for one in ahead) == 3  # a tile each


@pytest.mark.parametrize("config", [DENSE, SPARSE], ids=["dense", "sparse"])
def test_weights_are_made_fp8_on_the_card_one_by_one(
    config: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was loaded is what was planned, and decoding steps are captured where the model is dense."""
    plan = plan_on_h100(tmp_path, config, "fp8")
    assert (plan.quant.scheme, plan.quant.in_flight) == ("fp8_per_channel", True)
    monkeypatch.setenv("HF_DEACTIVATE_ASYNC_LOAD", "1")  # other threads know nothing of this card
    monkeypatch.setattr(trial, "_on_card", lambda call: 1.0)
    monkeypatch.setattr(trial, "_why_not", lambda name, weight, bias, most: "")
    monkeypatch.setattr(experts_trial, "_off_by", lambda said, meant: 0.0)
    with fake_card(), torch.no_grad():
        loaded = load(tmp_path, plan, "dummy")
        assert {one.device.type for one in loaded.model.parameters()} == {"cuda"}
        assert loaded.weights_bytes == pytest.approx(plan.devices[0].weights_bytes, rel=0.02)
        assert any("products by weights in fp8: 1 row by Triton's kernel" in note for note in loaded.notes)
        assert any("experts in fp8 by grouped products" in note for note in loaded.notes) == (config is SPARSE)
        assert len(GROUPED) == (config is SPARSE)
        told = chosen_in_fp8(loaded.model)
        assert set(told) == {ROWS, FP8_EXPERTS} if config is SPARSE else {ROWS}
        assert set(told[ROWS]) == {*quantized_products.ROW_TILES, MANY}
        assert loaded.model.dtype == torch.bfloat16
        sixteen = {name for name, one in loaded.model.named_parameters() if one.dtype != CODES and one.dim() > 1}
        assert not [name for name in sixteen if "_proj" in name and "_scale" not in name]
        assert can_be_captured(loaded.model)
        assert (DenseSteps.of(loaded.model) is not None) == (config is DENSE)


def test_a_stored_checkpoint_goes_to_the_card_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither its loading nor a forward makes a whole weight of a layer in more than 8 bits."""
    (tmp_path / "config.json").write_text(json.dumps({**DENSE, "vocab_size": 512}))
    plain = Qwen3ForCausalLM._from_config(AutoConfig.from_pretrained(tmp_path), dtype=torch.bfloat16).state_dict()
    state: dict[str, torch.Tensor] = {}
    for name, one in plain.items():
        is_linear = name.endswith("_proj.weight")
        state[name] = one.to(CODES) if is_linear else one
        if is_linear:
            state[f"{name}_scale_inv"] = torch.ones(one.shape[0] // 128, one.shape[1] // 128)
    save_file(state, tmp_path / "model.safetensors", {"format": "pt"})
    config = configured(tmp_path, fp8_as_stored(tmp_path, BLOCK))
    whole = DENSE["hidden_size"] * DENSE["intermediate_size"]
    monkeypatch.setattr(quantized_products, "SCRATCH_BYTES", whole // 4)
    monkeypatch.setenv("HF_DEACTIVATE_ASYNC_LOAD", "1")  # other threads know nothing of this card
    with fake_card() as card, torch.no_grad():
        files = {name: torch.empty(one.shape, dtype=one.dtype, device=CUDA) for name, one in state.items()}
        arguments = {"config": config, "state_dict": files, "dtype": torch.bfloat16, "device_map": "cuda:0"}
        with Largest() as seen:
            model = Qwen3ForCausalLM.from_pretrained(None, **arguments).eval()
            assert {one.device.type for one in model.parameters()} == {"cuda"}
            model.lm_head, loaded = nn.Identity(), seen.most
            model(input_ids=torch.ones(1, 100, dtype=torch.long, device=CUDA), use_cache=False)
        assert loaded < whole and seen.most < whole
        assert not [one for one in card.waits if "fp8" in one]


def test_steps_by_weights_in_fp8_are_captured(card: FakeCard) -> None:
    """Every decoding step is replayed, and waits for its tokens alone."""
    model = in_fp8(build("qwen3"))
    assert DenseSteps.of(model) is not None and can_be_captured(model)
    with stepping(card, model, in_place) as steps:
        steps.submit(*(sequence(f"r{i}", [1] * (20 + i), 30) for i in range(6)))
        for _ in range(5):
            steps.take()
        assert "fused_products" in model.model.layers[0].self_attn.__dict__
        assert card.captured and card.num_replayed == 4
        assert not [one for one in steps.take() if "fp8" in one]


def in_fp8(model: Any) -> Any:
    hook = AutoHfQuantizer.from_config(fp8_in_flight(("lm_head",)), pre_quantized=False)
    hook._process_model_before_weight_loading(model)
    for name, one in list(model.named_parameters()):
        if one.device.type == "meta":
            path, _, end = name.rpartition(".")
            dtype = CODES if "_scale" not in name else torch.float32
            made = nn.Parameter(torch.empty(one.shape, dtype=dtype, device=CUDA), requires_grad=False)
            model.get_submodule(path).register_parameter(end, made)
    return model
