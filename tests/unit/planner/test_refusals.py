"""Combinations that no engine starts with are refused by name, before anything is counted."""

from __future__ import annotations

from typing import Any

import pytest

from qserve.errors import UsageError
from qserve.units import MIB, format_bytes
from tests.unit.planner.test_make_plan import plan_of


@pytest.mark.parametrize("gpu", ["rtx-4090", None])
def test_no_longer_context_than_the_model_has(gpu: str | None) -> None:
    with pytest.raises(UsageError, match="40960 positions"):
        plan_of("Qwen/Qwen3-8B", gpu, max_model_len=40961)
    assert plan_of("Qwen/Qwen3-0.6B", gpu, max_model_len=40960).fits


def test_a_step_of_vllm_holds_a_token_of_every_sequence() -> None:
    with pytest.raises(UsageError, match="raise the first or lower the second"):
        plan_of("Qwen/Qwen3-8B", "rtx-4090", max_num_batched_tokens=8, max_num_seqs=16)
    plan = plan_of("Qwen/Qwen3-8B", "rtx-4090", max_num_batched_tokens=8)
    assert plan.workload.max_num_seqs <= 8
    for gpu in ("h100", "rtx-3060"):  # the second has no room, and still nothing that was asked for is changed
        crowded = plan_of("Qwen/Qwen3-8B", gpu, max_num_seqs=4096).workload
        assert (crowded.max_num_seqs, crowded.max_num_batched_tokens >= 4096) == (4096, True)


@pytest.mark.parametrize(
    ("gpu", "scheme", "fallback"),
    [("v100-32gb", "awq", "bnb-nf4"), ("memory=16GiB,cc=7.0", "fp8", None), ("t4", "awq", "awq")],
)
def test_a_card_without_kernels_gets_another_format(gpu: str, scheme: str, fallback: str | None) -> None:
    """The last releases with kernels for Volta at all are those of 0.19."""
    if fallback == scheme:
        assert plan_of("Qwen/Qwen3-8B", gpu, quant=scheme).quant.scheme == scheme
        return
    with pytest.raises(UsageError, match="does not run on vllm"):
        plan_of("Qwen/Qwen3-8B", gpu, quant=scheme, engine_version="0.19.0")
    if fallback:
        assert plan_of("Qwen/Qwen3-8B", gpu, quant="4bit", engine_version="0.19.0").quant.scheme == fallback


def test_a_stored_checkpoint_without_kernels_is_refused() -> None:
    with pytest.raises(UsageError, match="no kernels for that for Tesla V100"):
        plan_of("Qwen/Qwen3-8B-AWQ", "v100-32gb", engine_version="0.19.0")


@pytest.mark.parametrize(
    ("fixed", "words"),
    [
        ({"kv_cache_memory_bytes": 500 * 2**30}, ", --kv-cache-memory-bytes 500.00 GiB, "),
        ({"kv_cache_memory_bytes": 2**20}, "--kv-cache-memory-bytes 1 MiB is too little: a KV cache of"),
    ],
)
def test_a_refusal_names_the_cache_that_the_user_set(fixed: dict[str, Any], words: str) -> None:
    plan = plan_of("Qwen/Qwen3-8B", "h100", **fixed)
    assert not plan.fits
    assert words in str(plan.why_not)


@pytest.mark.parametrize("gpu", ["h100", None])
def test_a_cache_that_is_too_small_by_itself_lacks_what_the_sentence_says(gpu: str | None) -> None:
    """The device has room: it is as it would be with that cache."""
    plan = plan_of("Qwen/Qwen3-0.6B", gpu, kv_cache_memory_bytes=64 * MIB, max_model_len=4096)
    (device,) = plan.devices
    needed = f"needs {format_bytes(plan.short_bytes + 64 * MIB)}"
    assert plan.short_bytes > 0 and str(plan.why_not).endswith(needed), plan.why_not
    assert device.free_bytes > 0 and device.kv_cache_bytes == 64 * MIB


def test_quantized_kernels_do_not_compute_in_fp32() -> None:
    plan = plan_of("Qwen/Qwen3-8B", "rtx-4090", dtype="float32")
    assert plan.quant.scheme == "bnb-nf4"  # 16 bit asked as fp32 has no room, and fp8 and AWQ have no fp32
    with pytest.raises(UsageError, match="does not run on vllm"):
        plan_of("Qwen/Qwen3-8B", "rtx-4090", dtype="float32", quant="awq")


def test_a_release_that_nobody_measured_is_said_to_be_one() -> None:
    known, unknown = (plan_of("Qwen/Qwen3-8B", "rtx-4090", engine_version=text) for text in ("0.32.1", "0.40.0"))
    assert not any("newer than this planner" in note for note in known.notes)
    assert any("newer than this planner" in note for note in unknown.notes)


def test_a_cache_in_fp8_needs_an_engine_and_a_card_that_read_it() -> None:
    with pytest.raises(UsageError, match="--kv-cache-dtype: vLLM's alone"):
        plan_of("Qwen/Qwen3-8B", "rtx-4090", engine="transformers", kv_cache_dtype="fp8")
    with pytest.raises(UsageError, match="Tesla T4 has no attention kernel"):
        plan_of("Qwen/Qwen3-0.6B", "t4", kv_cache_dtype="fp8")
    assert plan_of("Qwen/Qwen3-0.6B", "a10", kv_cache_dtype="fp8").fits


def test_a_cache_in_nvfp4_needs_a_card_and_heads_that_its_kernels_read() -> None:
    fp8, fp4 = (plan_of("Qwen/Qwen3-8B", "rtx-5090", kv_cache_dtype=name) for name in ("fp8", "nvfp4"))
    assert fp4.kv_cache_tokens == pytest.approx(16 / 9 * fp8.kv_cache_tokens, rel=0.001)
    assert "nvfp4" in fp4.engine_args
    with pytest.raises(UsageError, match="Tesla T4 has no attention kernel for it, which"):
        plan_of("Qwen/Qwen3-0.6B", "t4", kv_cache_dtype="nvfp4")
    with pytest.raises(UsageError, match="misread heads of 64"):
        plan_of("Qwen/Qwen2.5-0.5B", "rtx-5090", kv_cache_dtype="nvfp4")


def test_a_cache_format_without_counted_bytes_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match="'turboquant_4bit_nc' is unknown; it takes auto or one of"):
        plan_of("Qwen/Qwen3-8B", "rtx-5090", kv_cache_dtype="turboquant_4bit_nc")


def test_blocks_are_multiples_of_16() -> None:
    with pytest.raises(UsageError, match="multiples of 16"):
        plan_of("Qwen/Qwen3-8B", "rtx-4090", block_size=7)
    assert plan_of("Qwen/Qwen3-8B", "rtx-4090", block_size=32).fits


@pytest.mark.parametrize(
    ("model", "before", "since"),
    [
        ("Qwen/Qwen3-8B", "0.8.3", "0.8.4"),
        ("Qwen/Qwen3-30B-A3B", "0.7.3", "0.8.4"),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", "0.10.1", "0.10.2"),
        ("Qwen/Qwen2.5-VL-7B-Instruct", "0.7.1", "0.7.2"),
        ("Qwen/Qwen3.6-27B", "0.15.0", "0.16.0"),
    ],
)
def test_a_release_older_than_the_models_code_in_it_is_refused(model: str, before: str, since: str) -> None:
    with pytest.raises(UsageError, match=f"^--engine-version {before}: vLLM has Qwen.* from {since} on"):
        plan_of(model, "h100", engine_version=before)
    assert plan_of(model, "h200:2", engine_version=since).fits


@pytest.mark.parametrize(
    ("quant", "release", "is_why"),
    [("fp8_per_tensor", "0.25.0", True), ("mxfp8", "0.25.0", True), ("awq", "0.25.0", False), ("awq", None, False)],
)
def test_a_release_that_is_the_reason_is_named(quant: str, release: str | None, is_why: bool) -> None:
    with pytest.raises(UsageError) as refused:
        plan_of("Qwen/Qwen3-0.6B", "h100-80gb", quant=quant, engine="vllm", engine_version=release)
    assert ("0.32.0 does: leave out --engine-version 0.25.0" in str(refused.value)) is is_why
