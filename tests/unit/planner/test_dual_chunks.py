"""Models that no start of vLLM would serve, whatever fits."""

from __future__ import annotations

from typing import Any

import pytest

from qserve.core.checkpoint import Checkpoint
from qserve.core.hardware import Hardware, parse_gpu
from qserve.core.model_spec import ModelSpec
from qserve.errors import UsageError
from qserve.hub.bundled import bundled_config
from qserve.planner import Plan, make_plan, plan_request
from qserve.units import GIB

CHUNKS = {"chunk_size": 262144, "local_size": 8192, "original_max_position_embeddings": 262144}


def plan_with(model: str, chunks: Any, gpu: str = "h100:8", **asked: Any) -> Plan:
    config = dict(bundled_config(model) or {})
    holder = {**config.pop("text_config", {})} if "text_config" in config else config
    holder.pop("dual_chunk_attention_config", None)
    if chunks is not ...:
        holder["dual_chunk_attention_config"] = chunks
    whole = config if holder is config else {**config, "text_config": holder}
    hardware = Hardware(parse_gpu(gpu), 512 * GIB, 512 * GIB, 32, disk_free_bytes=1024 * GIB)
    return make_plan(
        Checkpoint(model, None, whole, ModelSpec.from_config(whole, model)), hardware, plan_request(**asked)
    )


@pytest.mark.parametrize(
    "model", ["Qwen/Qwen2.5-7B-Instruct-1M", "Qwen/Qwen3-30B-A3B-Instruct-2507", "Qwen/Qwen3-VL-8B-Instruct"]
)
@pytest.mark.parametrize("chunks", [CHUNKS, {"chunk_size": 8192}, {}])
def test_dual_chunks_are_refused_where_the_engine_has_none(model: str, chunks: dict[str, int]) -> None:
    for release in ("0.9.2", "0.20.0", "0.32.0"):
        with pytest.raises(
            UsageError, match=r"remove dual_chunk_attention_config from the config\.json of a copy"
        ) as why:
            plan_with(model, chunks, engine="vllm", engine_version=release)
        assert ("the 262,144 tokens that it was trained with" in str(why.value)) == (chunks == CHUNKS)


@pytest.mark.parametrize("chunks", [..., None])
def test_without_them_it_is_planned(chunks: Any) -> None:
    assert plan_with("Qwen/Qwen2.5-7B-Instruct-1M", chunks, engine="vllm").fits


def test_they_are_planned_where_nothing_reads_them_or_the_first_engine_does() -> None:
    model = "Qwen/Qwen2.5-7B-Instruct-1M"
    assert plan_with(model, CHUNKS, engine="transformers").fits
    assert plan_with(model, CHUNKS, engine="vllm", engine_version="0.8.5").fits
    assert plan_with(model, CHUNKS, "t4:8", engine="vllm", engine_version="0.9.2").engine == "vllm"


@pytest.mark.parametrize("size", ["7B", "14B"])
def test_the_models_with_a_million_positions_have_them(size: str) -> None:
    config = bundled_config(f"Qwen/Qwen2.5-{size}-Instruct-1M")
    assert config is not None
    assert config["dual_chunk_attention_config"] == CHUNKS
