"""Whatever config.json holds: a plan or a message, never a traceback."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qserve.core.checkpoint import Checkpoint
from qserve.core.hardware import Hardware, parse_gpu
from qserve.core.model_spec import ModelSpec
from qserve.errors import QserveError
from qserve.hub.bundled import bundled_config
from qserve.planner import PlanRequest, make_plan
from qserve.units import GIB

MODELS = (
    "Qwen/Qwen2.5-7B",
    "Qwen/Qwen3-30B-A3B",
    "Qwen/Qwen3.5-9B",
    "Qwen/Qwen3-8B-AWQ",
    "Qwen/Qwen3-Next-80B-A3B-Instruct",
    "Qwen/Qwen3.8-Flash-Next",
    "Qwen/Qwen3.8-Flash-Next-FP8",
)
OPTIONAL = (
    "layer_types",
    "rope_scaling",
    "rope_parameters",
    "sliding_window",
    "use_sliding_window",
    "quantization_config",
    "vision_config",
    "text_config",
    "architectures",
    "dtype",
    "head_dim",
    "num_labels",
    "id2label",
    "moe_intermediate_size",
    "mamba_ssm_dtype",
    "partial_rotary_factor",
    "mlp_only_layers",
    "num_experts",
    "indexer_n_heads",
    "indexer_compress_ratio",
    "ple_layer_ids",
    "ple_embedding_dtype",
    "ngram_size",
    "hc_count",
)
junk = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 300) | st.floats(allow_nan=False) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=4,
)
MACHINE = Hardware(parse_gpu("h100-sxm"), 64 * GIB, 64 * GIB, 8)

WITHOUT_WIDTH = {
    key: value for key, value in (bundled_config("Qwen/Qwen3-8B") or {}).items() if key != "intermediate_size"
}


@pytest.mark.parametrize("machine", [MACHINE, Hardware((), 64 * GIB, 64 * GIB, 8)], ids=["card", "cpu"])
@pytest.mark.parametrize("engine", ["transformers", "vllm"])
@pytest.mark.parametrize(
    "quantization",
    [
        {"quant_method": "gptq", "bits": 4, "group_size": -1},
        {"quant_method": "compressed-tensors", "config_groups": {"0": {"weights": {"num_bits": 8, "type": "int"}}}},
        {"quant_method": "fp8"},
    ],
    ids=lambda one: one["quant_method"],
)
def test_a_matrix_without_columns_is_no_traceback(machine: Hardware, engine: str, quantization: dict[str, Any]) -> None:
    """config.json need not say how wide the MLP is, and scales of whole rows are counted all the same."""
    config = {**WITHOUT_WIDTH, "quantization_config": quantization}
    checkpoint = Checkpoint("m", None, config, ModelSpec.from_config(config, "m"))
    assert checkpoint.spec.intermediate_size == 0
    with contextlib.suppress(QserveError):
        assert make_plan(checkpoint, machine, PlanRequest(max_model_len=64, engine=engine)).devices


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(MODELS), st.data())
def test_a_plan_or_a_message(model: str, data: st.DataObject) -> None:
    config: dict[str, Any] = dict(bundled_config(model) or {})
    holder = "text_config" if "text_config" in config and data.draw(st.booleans()) else None
    inner = dict(config[holder]) if holder else config
    for key in data.draw(st.lists(st.sampled_from(sorted({*inner, *OPTIONAL})), min_size=1, max_size=2)):
        inner[key] = data.draw(junk, label=key)
    if holder:
        config[holder] = inner
    with contextlib.suppress(QserveError):
        checkpoint = Checkpoint(model, None, config, ModelSpec.from_config(config, model))
        make_plan(checkpoint, MACHINE, PlanRequest(max_model_len=64))
