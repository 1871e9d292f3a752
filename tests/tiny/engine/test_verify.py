"""The check of a quantization's quality: the figures of two models side by side, without having them so."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from qserve.demo import chat_model_path
from qserve.errors import UsageError
from qserve.model.cpu.linear import CompiledLinear
from qserve.model.load import load
from qserve.model.verify import _text_ids, verify_quant
from tests.tiny.engine.loading import folder_of, load_planned, plan_of

# torch's own, on the first import of its compiler.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script_method:DeprecationWarning")


@pytest.mark.parametrize(("scheme", "most_kl", "least_agreement"), [("bnb-int8", 0.01, 0.95), ("bnb-nf4", 0.3, 0.7)])
def test_the_demo_loses_as_much_as_is_stated(scheme: str, most_kl: float, least_agreement: float) -> None:
    """docs/results/loading.md quotes these bounds."""
    quality = verify_quant(folder_of("demo"), plan_of("demo", scheme), load_planned("demo", scheme))
    assert 0 < quality.mean_kl < most_kl
    assert quality.mean_kl < quality.worst_kl
    assert quality.top1_agreement > least_agreement
    assert (quality.scheme, quality.reference) == (scheme, "bfloat16")


def test_the_figures_are_those_of_both_models_at_once() -> None:
    loaded = load_planned("demo", "bnb-nf4")
    quality = verify_quant(folder_of("demo"), plan_of("demo", "bnb-nf4"), loaded)
    plain = AutoModelForCausalLM.from_pretrained(chat_model_path(), dtype=torch.bfloat16).eval()
    ids = _text_ids(loaded)
    with torch.no_grad():
        expected, got = (model(ids).logits[0].float().log_softmax(-1) for model in (plain, loaded.model))
    kl = torch.nn.functional.kl_div(got, expected, log_target=True, reduction="none").sum(-1)
    assert quality.num_tokens == ids.shape[1]
    assert quality.mean_kl == pytest.approx(kl.mean().item(), rel=1e-3)
    assert quality.worst_kl == pytest.approx(kl.max().item(), rel=1e-3)
    assert quality.top1_agreement == pytest.approx((expected.argmax(-1) == got.argmax(-1)).float().mean().item())


def test_rounding_activations_costs_little_beside_the_weights() -> None:
    """As docs/results/cpu.md says; what is measured of them is left in place."""
    plan = replace(plan_of("demo", "bnb-nf4"), cpu_activations="int8")
    loaded = load(folder_of("demo"), plan)
    if loaded.notes:
        pytest.skip(loaded.notes[0])
    quality = verify_quant(folder_of("demo"), plan, loaded)
    assert quality.activations is not None
    # 0 on plain AVX2, where NF4 is exact beside more than 8 rows.
    assert 0 <= quality.activations.mean_kl < 0.003 < quality.mean_kl
    assert quality.activations.top1_agreement > 0.96
    assert "activations in int8" in str(quality)
    assert any(part.matrix.activation_bits == 8 for part in loaded.model.modules() if isinstance(part, CompiledLinear))
    exact = verify_quant(folder_of("demo"), replace(plan, cpu_activations="exact"), loaded)
    assert exact.activations is None


def test_nothing_to_compare_with() -> None:
    with pytest.raises(UsageError, match="--verify-quant"):
        verify_quant(folder_of("demo"), plan_of("demo", "bf16"), load_planned("demo", "bf16"))


def test_the_16_bit_weights_are_gone(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(chat_model_path(), tmp_path / "checkpoint"))
    loaded = load_planned(str(folder), "bnb-nf4")
    (folder / "model.safetensors").unlink()
    with pytest.raises(UsageError, match="16-bit weights"):
        verify_quant(folder, plan_of(str(folder), "bnb-nf4"), loaded)
