"""Packings of others' checkpoints: to the bytes that public sources tell, and what --quant makes of them."""

from __future__ import annotations

import pytest

from qserve.core import facts
from qserve.core.dimensions import tensors_of
from qserve.errors import UsageError
from qserve.hub import resolve
from qserve.hub.bundled import bundled_config
from qserve.planner.packed import packed_checkpoints, packing_of, packings_of
from qserve.units import GIB
from tests.unit.engines.vllm.builders import plan_of


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def test_each_row_has_a_model_that_is_known_and_a_packing_that_is_read() -> None:
    table = facts.load("checkpoints")
    used = set()
    for model, row in table["checkpoints"].items():
        assert bundled_config(row["base"]), model
        used |= {row.get("packing"), *row.get("packings", ())}
        assert ("scheme" in row) != bool(packings_of(model)), model
        assert resolve(model).spec.quantization is not None
        assert packed_checkpoints(row["base"])[model]
    assert used - {None} == set(table["packings"])


@pytest.mark.parametrize(
    ("model", "quant", "loaded"),
    [
        ("Qwen/Qwen3-8B", "nvfp4", "nvidia/Qwen3-8B-NVFP4"),
        ("Qwen/Qwen3-32B", "nvfp4", "nvidia/Qwen3-32B-NVFP4"),
        ("Qwen/Qwen3-30B-A3B", "nvfp4", "nvidia/Qwen3-30B-A3B-NVFP4"),
        ("Qwen/Qwen3.6-27B", "nvfp4", "nvidia/Qwen3.6-27B-NVFP4"),
        ("Qwen/Qwen3-8B", "w4a16", "RedHatAI/Qwen3-8B-quantized.w4a16"),
        ("Qwen/Qwen3-0.6B", "w4a16", "RedHatAI/Qwen3-0.6B-quantized.w4a16"),
        ("Qwen/Qwen3-8B", "awq", "Qwen/Qwen3-8B-AWQ"),
        ("Qwen/Qwen3.6-27B", "awq", "QuantTrio/Qwen3.6-27B-AWQ"),
    ],
)
def test_a_quantization_that_others_made_is_loaded_from_them(model: str, quant: str, loaded: str) -> None:
    plan = plan_of(model, "rtx-pro-6000", quant=quant)
    assert plan.fits
    assert (plan.quant.checkpoint, plan.quant.scheme) == (loaded, quant)
    weights = sum(tensor.nbytes for tensor in tensors_of(resolve(loaded).spec) if tensor.role not in ("mtp", "embed"))
    assert 0.97 * weights <= plan.devices[0].weights_bytes <= 1.15 * weights


@pytest.mark.parametrize("quant", ["auto", "4bit", "fp8"])
@pytest.mark.parametrize("model", ["Qwen/Qwen3.8-27B", "Qwen/Qwen3-8B", "Qwen/Qwen3-0.6B", "Qwen/Qwen3.6-27B"])
def test_a_word_loads_no_checkpoint_of_the_table_of_others(model: str, quant: str) -> None:
    for card in ("rtx-4090", "rtx-5090", "h100"):
        assert plan_of(model, card, quant=quant).quant.checkpoint not in facts.load("checkpoints")["checkpoints"]


@pytest.mark.parametrize(
    ("model", "quant", "named"),
    [
        ("Qwen/Qwen3.5-9B", "awq", "`qserve plan cyankiwi/Qwen3.5-9B-AWQ-4bit` (awq)"),
        ("Qwen/Qwen3.5-27B", "nvfp4", "`qserve plan cyankiwi/Qwen3.5-27B-AWQ-4bit` (awq)"),
        ("Qwen/Qwen3-4B", "w4a16", "`qserve plan RedHatAI/Qwen3-4B-quantized.w4a16` (w4a16)"),
    ],
)
def test_one_whose_packing_is_not_known_is_named_as_a_command(model: str, quant: str, named: str) -> None:
    with pytest.raises(UsageError) as refused:
        plan_of(model, "rtx-pro-6000", quant=quant)
    assert f"; others have packed it: {named}" in str(refused.value)
    assert packing_of(named.split()[2].strip("`")) is None


def test_checkpoints_of_other_bits_are_no_answer() -> None:
    with pytest.raises(UsageError) as refused:
        plan_of("Qwen/Qwen3-32B", "rtx-pro-6000", quant="gptq-int8")
    assert "others have packed it" not in str(refused.value)


# Files as their headers have them, with the encoder and the MTP head, in GiB. Public index, ids 71124810209 (27B and
# 35B-A3B) and 56715211997 (397B-A17B); 35B-A3B as vLLM loads it: https://github.com/vllm-project/vllm/issues/36973
# (without the head) and id 71124810209 (without the encoder too).
@pytest.mark.parametrize(
    ("model", "left_out", "measured_gib"),
    [
        ("Qwen/Qwen3.5-27B-GPTQ-Int4", (), 28.16),
        ("Qwen/Qwen3.5-35B-A3B-GPTQ-Int4", ("mtp",), 21.05),
        ("Qwen/Qwen3.5-35B-A3B-GPTQ-Int4", ("mtp", "vision"), 20.27),
        ("Qwen/Qwen3.5-397B-A17B-GPTQ-Int4", (), 219.52),
        ("Qwen/Qwen3.6-27B-FP8", (), 28.75),
        ("Qwen/Qwen3.8-27B-FP8", (), 28.75),
        ("Qwen/Qwen3.5-35B-A3B-FP8", (), 34.89),
        ("Qwen/Qwen3.6-35B-A3B-FP8", (), 34.89),
        ("Qwen/Qwen3.5-397B-A17B-FP8", (), 378.26),
        ("cyankiwi/Qwen3.8-27B-AWQ-BF16-INT4", (), 26.86),
        ("palmfuture/Qwen3.8-27B-GPTQ-Int4", ("mtp", "vision"), 17.88),
        ("groxaxo/Qwen3.8-27B-GPTQ-Pro-4bit-g64-calib128", ("mtp", "vision"), 17.20),
        ("groxaxo/Qwen3.6-27B-GPTQ-Pro-4bit", ("mtp", "vision"), 16.83),
        ("RedHatAI/Qwen3.8-27B-INT4", ("mtp", "vision"), 16.84),
        ("palmfuture/Qwen3.6-35B-A3B-GPTQ-Int4", (), 22.73),
        ("QuantTrio/Qwen3.6-27B-AWQ", ("mtp", "vision"), 19.05),
        ("QuantTrio/Qwen3.6-35B-A3B-AWQ", (), 23.70),
        ("cyankiwi/Qwen3.8-Flash-Next-AWQ-INT4", (), 175.355),
    ],
)
def test_checkpoints_of_hybrids_are_as_large_as_their_files(
    model: str, left_out: tuple[str, ...], measured_gib: float
) -> None:
    planned = sum(tensor.nbytes for tensor in tensors_of(resolve(model).spec) if tensor.role not in left_out)
    assert planned / GIB == pytest.approx(measured_gib, rel=0.025 if left_out else 0.002)


def test_no_official_sibling_of_a_hybrid_has_the_layout_of_another_family() -> None:
    """Each has a row of [stored]: most quantizers' own rule leaves nothing of a hybrid in 16 bit."""
    stored = facts.load("models")["stored"]
    missing = [
        sibling
        for base, siblings in facts.load("siblings").items()
        if resolve(base).spec.is_hybrid
        for sibling in siblings.values()
        if sibling not in stored and packing_of(sibling) is None
    ]
    assert missing == [
        "Qwen/Qwen3-Next-80B-A3B-Instruct-FP8",
        "Qwen/Qwen3-Next-80B-A3B-Thinking-FP8",
        "Qwen/Qwen3-Coder-Next-FP8",
    ]
