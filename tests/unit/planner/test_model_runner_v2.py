"""vLLM's second model runner and its compiler, in the account: what the profile run of a first start counts."""

from __future__ import annotations

import pytest

from qserve.core.hardware import known_gpus
from qserve.core.model_spec import ModelSpec
from qserve.hub.bundled import bundled_config
from qserve.planner.memory.vllm import activation_peak, compile_peak, penalty_bytes
from qserve.planner.versions import VllmVersion
from qserve.units import GIB
from tests.unit.planner.test_make_plan import plan_of


def spec_of(model: str, **changes: object) -> ModelSpec:
    return ModelSpec.from_config({**(bundled_config(model) or {}), **changes}, model)


def runs(model: str, release: str, **changes: object) -> bool:
    return VllmVersion.parse(release).runs_model_runner_v2(spec_of(model, **changes))


AWQ = {"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128}}


def test_the_second_model_runner_came_model_by_model() -> None:
    assert not runs("Qwen/Qwen3-8B", "0.21.0")
    assert runs("Qwen/Qwen3-8B", "0.24.0")
    assert not runs("Qwen/Qwen3-8B", "0.23.0", **AWQ)
    assert not runs("Qwen/Qwen2.5-7B", "0.24.0")
    assert runs("Qwen/Qwen2.5-7B", "0.25.0", **AWQ)
    assert runs("Qwen/Qwen3-30B-A3B", "0.24.0")
    assert not runs("Qwen/Qwen3.5-9B", "0.28.0")
    assert runs("Qwen/Qwen3.5-9B", "0.29.0")


def test_it_takes_graphs_from_the_cache_from_0_29_on() -> None:
    """Up to 0.28 its estimate was 0; the first runner's models lost theirs from 0.21 on."""
    dense, hybrid = spec_of("Qwen/Qwen3-8B"), spec_of("Qwen/Qwen3.5-9B")
    assert [VllmVersion.parse(r).subtracts_cuda_graphs(dense) for r in ("0.21.0", "0.28.0", "0.29.0")] == [
        True, False, True,
    ]  # fmt: skip
    assert VllmVersion.parse("0.28.0").subtracts_cuda_graphs(hybrid)


def test_a_first_start_copies_the_embedding() -> None:
    """1.449 GiB of Qwen3-14B's embedding and two residual streams of 2048 tokens: 1.48 GiB in three logs of 0.29."""
    spec, version = spec_of("Qwen/Qwen3-14B"), VllmVersion.parse("0.29.0")
    peak = activation_peak(spec, known_gpus()["l40s"], version, 256, 2048)
    assert peak == compile_peak(spec, version, 2048) == 151936 * 5120 * 2 + 4 * 2048 * 5120
    assert peak / GIB == pytest.approx(1.48, abs=0.01)
    assert compile_peak(spec, version, 2048, 2) == 151936 * 5120 + 4 * 2048 * 5120


def test_nothing_is_compiled_eagerly_nor_beside_a_vision_encoder() -> None:
    spec, version = spec_of("Qwen/Qwen3-14B"), VllmVersion.parse("0.29.0")
    card = known_gpus()["l40s"]
    assert activation_peak(spec, card, version, 256, 2048, compiles=False) < GIB
    assert compile_peak(spec_of("Qwen/Qwen3.5-9B"), version, 2048) == 0
    assert compile_peak(spec, VllmVersion.parse("0.19.0"), 2048) == 0


def test_penalties_are_counted_for_every_sequence() -> None:
    spec, version = spec_of("Qwen/Qwen3-14B"), VllmVersion.parse("0.29.0")
    assert penalty_bytes(spec, version, 256) == 256 * (151936 * 4 + 151936 // 32 * 4)
    assert penalty_bytes(spec, VllmVersion.parse("0.19.0"), 256) == 0
    assert (
        penalty_bytes(spec_of("Qwen/Qwen3-0.6B", architectures=["Qwen3ForSequenceClassification"]), version, 256) == 0
    )


def test_the_plan_says_so() -> None:
    plan = plan_of("Qwen/Qwen3-8B", "rtx-4090", engine="vllm", engine_version="0.29.0", max_num_seqs=64, quant="bf16")
    terms = {term.name: term.formula for term in plan.devices[0].terms}
    assert "compiler, first start only, 2·151936·4096/1" in terms["activations"]
    assert "penalties 64·151936" in terms["non-torch"]
    assert "− graphs" in terms["KV cache"]
