"""What is refused before a model is quantized, and what the plan says that it takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from qserve.derive.quantize.methods import METHODS
from qserve.derive.quantize.plan import QuantizePlan, check_sibling, plan_quantize
from qserve.derive.source import Source
from qserve.errors import UsageError
from qserve.hub.resolve import resolve
from tests.unit.hub.test_folder import CONFIG, write_safetensors

LAYER = "model.layers.0"
WEIGHTS = {"model.embed_tokens.weight": (32, 64), f"{LAYER}.mlp.up_proj.weight": (128, 64), "model.norm.weight": (64,)}


def planned(folder: Path, to: str, weights: dict[str, tuple[int, ...]] | None = None, **keys: Any) -> QuantizePlan:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**CONFIG, "hidden_size": 64, **keys}))
    write_safetensors(folder / "model.safetensors", WEIGHTS | (weights or {}))
    source = Source(resolve(str(folder)), folder)
    return plan_quantize(source, METHODS[to], None, max_length=16, num_samples=4)


def test_sizes_are_those_of_the_parts(tmp_path: Path) -> None:
    plan = planned(tmp_path, "w4a16")
    kept = 2 * (32 * 64 + 64)
    assert plan.group_size == 64 and plan.num_quantized == 1 and plan.ignore == ("lm_head",)
    assert plan.num_bytes == kept + 128 * 64 // 2 + 128 * 2
    assert planned(tmp_path, "fp8").num_bytes == kept + 128 * 64 + 128 * 2
    # The source and the weight once more, a layer's Hessian and three while it is factored, 64 tokens in and out.
    assert plan.memory_bytes - (704 << 20) == plan.source_bytes + 2 * 128 * 64 + 4 * 4 * 64**2 + 2 * 2 * 64 * 64


def test_a_result_is_held_beside_its_source(tmp_path: Path) -> None:
    plan = planned(tmp_path, "fp8")
    assert plan.memory_bytes - (704 << 20) == plan.source_bytes + plan.num_bytes


@pytest.mark.parametrize("to", ["awq", "nf4"])
def test_what_was_not_tried_with_experts_is_refused(tmp_path: Path, to: str) -> None:
    with pytest.raises(UsageError, match=rf"--to {to} is for dense models.*take --to w4a16"):
        planned(tmp_path, to, {f"{LAYER}.mlp.experts.0.up_proj.weight": (128, 64)})


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128}}, "is quantized already"),
        ({"architectures": ["Qwen3ForSequenceClassification"]}, "generate text alone"),
    ],
)
def test_what_can_not_be_quantized_is_refused(tmp_path: Path, keys: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        planned(tmp_path, "w4a16", **keys)


def test_what_somebody_published_is_named() -> None:
    with pytest.raises(UsageError, match=r"Qwen/Qwen3-32B-AWQ is published.*qserve up Qwen/Qwen3-32B --quant awq"):
        check_sibling("Qwen/Qwen3-32B", METHODS["w4a16"])
    check_sibling("Qwen/Qwen3-32B", METHODS["nf4"])
    check_sibling("./my-model", METHODS["w4a16"])
