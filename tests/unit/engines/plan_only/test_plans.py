"""Plans for cards that no engine of qserve runs on: what is counted and refused, and that they say what they are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from qserve.core.hardware import Hardware, known_gpus, parse_gpu
from qserve.core.plan_only import backend_of, plan_only_rows
from qserve.engines.plan_only.engine import ENGINE
from qserve.errors import UsageError
from qserve.hub.resolve import resolve
from qserve.planner import Plan, make_plan, plan_request
from qserve.planner.engine import PLAN_ONLY, engine_named, engine_names
from qserve.planner.speed.estimate import SpeedEstimate, estimate_speed
from qserve.units import GIB


def machine(gpu: str) -> Hardware:
    return Hardware(parse_gpu(gpu), 64 * GIB, 60 * GIB, 8)


def plan_of(model: str, gpu: str, **fixed: Any) -> Plan:
    return make_plan(resolve(model), machine(gpu), plan_request(**fixed))


def speed_of(model: str, gpu: str, **fixed: Any) -> SpeedEstimate:
    plan = plan_of(model, gpu, **fixed)
    return estimate_speed(plan, resolve(model).spec, known_gpus()[gpu], None)


@pytest.mark.parametrize("key", plan_only_rows())
def test_every_card_plans_a_model_and_says_that_it_only_plans(key: str) -> None:
    plan = plan_of("Qwen/Qwen3-4B", key)
    assert plan.fits
    assert (plan.engine, plan.engine_version, plan.engine_args) == (PLAN_ONLY, "", ())
    name = known_gpus()[key].name
    assert f"Plan only: no engine of qserve runs on {name}, where {backend_of(known_gpus()[key].kind).serves}" in str(
        plan.notes
    )
    assert "nothing was measured here" in str(plan.notes)


def test_no_term_is_cudas_and_the_columns_add_up() -> None:
    plan = plan_of("Qwen/Qwen3-8B", "m4-max-64gb")
    (device,) = plan.devices
    assert [term.name for term in device.terms] == ["weights", "KV cache", "activations", "runtime"]
    assert device.cuda_graphs_bytes == 0
    assert "CUDA" not in str(plan.notes) + str([term.formula + term.source for term in device.terms])
    assert sum(term.num_bytes for term in device.terms) + device.free_bytes == device.total_bytes
    assert device.weights_bytes == pytest.approx(resolve("Qwen/Qwen3-8B").parameters * 2, rel=0.001)
    assert plan.kv_cache_tokens * plan.model.kv_bytes_per_token == device.kv_cache_bytes
    guesses = {term.name: term.high_bytes / term.low_bytes for term in device.terms}
    assert guesses["runtime"] >= 4
    assert guesses["activations"] >= 4


def test_four_bit_of_an_apple_chip_is_as_large_as_the_converted_checkpoint() -> None:
    """mlx-community's Qwen3-8B-4bit holds 4.61 GB: groups of 64 in embeddings and head, too."""
    plan = plan_of("Qwen/Qwen3-8B", "m4-32gb", quant="4bit")
    assert plan.quant.scheme == "mlx-4bit"
    assert plan.devices[0].weights_bytes == pytest.approx(4.61e9, rel=0.02)
    assert "converted for MLX" in plan.quant.reason
    assert plan_of("Qwen/Qwen3-8B", "m4-32gb", quant="int8").quant.scheme == "mlx-8bit"


def test_auto_takes_fewer_bits_where_sixteen_do_not_fit() -> None:
    plan = plan_of("Qwen/Qwen3-8B", "m4-16gb")
    assert (plan.quant.scheme, plan.fits) == ("mlx-4bit", True)
    assert any(note.startswith("Chose mlx-4bit: bf16 needs") for note in plan.notes)
    assert plan_of("Qwen/Qwen3-32B", "b60").quant.scheme == "awq"


@pytest.mark.parametrize(
    ("asked", "made"),
    [(one, one) for one in ("fp8_per_tensor", "fp8_per_block", "mxfp8")] + [("fp8", "fp8_per_tensor")],
)
def test_fp8_of_an_intel_card_is_made_while_loading(asked: str, made: str) -> None:
    plan = plan_of("Qwen/Qwen3-14B", "b60", quant=asked)
    assert (plan.quant.scheme, plan.quant.in_flight, plan.quant.checkpoint) == (made, True, "Qwen/Qwen3-14B")
    assert plan.quant.reason.startswith("made while loading, one scale per ")
    assert 14e9 < plan.devices[0].weights_bytes < 17e9
    with pytest.raises(UsageError, match=f"{asked}.* is not planned on Ascend 910B"):
        plan_of("Qwen/Qwen3-14B", "910b", quant=asked)


def test_auto_takes_eight_bit_before_four_on_an_intel_card() -> None:
    assert plan_of("Qwen/Qwen3-14B", "b60").quant.scheme == "fp8_per_tensor"


@pytest.mark.parametrize(
    ("model", "gpu", "fixed", "why"),
    [
        ("Qwen/Qwen3-8B", "b60", {"quant": "int8"}, "is not planned on Intel Arc Pro B60.*bf16, fp16, fp8_per_block"),
        ("Qwen/Qwen3-8B", "910b", {"quant": "nvfp4"}, "is not planned on Ascend 910B"),
        ("Qwen/Qwen3-8B-FP8", "b60", {}, "stored as fp8, and what serves there has no kernels.*name the 16-bit model"),
        ("Qwen/Qwen3-8B-AWQ", "m4-32gb", {}, "stored as awq, and what serves there has no kernels"),
        ("Qwen/Qwen3-8B", "310p", {"dtype": "bfloat16"}, "Ascend 310P has no bf16; take float16"),
        ("Qwen/Qwen3-8B", "310p", {"dtype": "bf16"}, "Ascend 310P has no bf16; take float16"),
        ("Qwen/Qwen3-8B", "b60", {"dtype": "float32"}, "planned in 16 bit only; take float16 or bfloat16, or leave"),
        ("Qwen/Qwen3-8B", "m4-32gb", {"dtype": "float"}, "on Apple M4 32 GB models are planned in 16 bit only"),
        ("Qwen/Qwen3-8B", "310p", {"dtype": "float32"}, "planned in 16 bit only; take float16, or leave it out"),
        ("Qwen/Qwen3-8B", "310p", {"quant": "bf16"}, "is not planned on Ascend 310P"),
        ("Qwen/Qwen3-8B", "b60", {"engine": "vllm"}, "no engine of qserve runs on Intel Arc Pro B60, where vLLM's XPU"),
        (
            "Qwen/Qwen3-8B",
            "910b",
            {"engine": "transformers"},
            "no engine of qserve runs on Ascend 910B, where vllm-asc",
        ),
        ("Qwen/Qwen3-8B", "b60:2", {"tensor_parallel_size": 2}, "--tensor-parallel-size: no engine that reads it runs"),
        ("Qwen/Qwen3-8B", "m4-16gb:2", {}, "2 × Apple M4 16 GB: such a machine has one"),
        ("Qwen/Qwen3-8B", "b60", {"engine_version": "0.32.0"}, "no release of an engine is planned for"),
        ("Qwen/Qwen3-8B", "rtx-4090", {"engine": PLAN_ONLY}, "plan-only is for cards that no engine of qserve runs on"),
        ("Qwen/Qwen2.5-Math-RM-72B", "910b", {}, "only models that write text are planned"),
    ],
)
def test_what_the_cards_row_does_not_name_is_refused(model: str, gpu: str, fixed: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why) as raised:
        plan_of(model, gpu, **fixed)
    assert "--engine transformers" not in str(raised.value)


def test_a_card_without_bf16_computes_in_fp16() -> None:
    plan = plan_of("Qwen/Qwen3-8B", "310p")
    assert (plan.dtype, plan.quant.scheme) == ("float16", "fp16")
    assert "Ascend 310P has no bf16" in plan.quant.reason
    assert plan_of("Qwen/Qwen3-8B", "910b").dtype == "bfloat16"


@pytest.mark.parametrize("key", plan_only_rows())
@pytest.mark.parametrize("stored", ["bfloat16", "float16", "float32"])
def test_no_plan_names_a_quantization_that_the_cards_row_does_not(key: str, stored: str) -> None:
    checkpoint = resolve("Qwen/Qwen3-0.6B")
    plan = make_plan(replace(checkpoint, spec=replace(checkpoint.spec, dtype=stored)), machine(key), plan_request())
    assert plan.quant.scheme in known_gpus()[key].schemes
    assert plan.dtype in ("bfloat16", "float16")
    assert plan.dtype == "float16" or known_gpus()[key].supports("bf16")


def test_cards_share_a_model_that_one_does_not_hold() -> None:
    plan = plan_of("Qwen/Qwen3-32B", "910b:4")
    assert plan.placement.tensor_parallel_size == 2
    assert len(plan.devices) == 2
    assert "What the cards exchange takes time that is not counted" in plan.notes
    assert not any("--tensor-parallel-size" in note for note in plan.notes)


def test_what_does_not_fit_is_told_with_what_does() -> None:
    plan = plan_of("Qwen/Qwen3-32B", "m4-pro-24gb")
    assert not plan.fits
    assert plan.short_bytes == -min(device.free_bytes for device in plan.devices)
    assert any("Qwen3-14B in 4 bit" in way.change for way in plan.suggestions)
    assert "--gpu m4-pro-24gb" in plan.suggestions[0].command


def test_a_fixed_length_and_a_fixed_cache_are_kept() -> None:
    plan = plan_of("Qwen/Qwen3-8B", "b60", max_model_len=8192, max_num_seqs=2)
    assert plan.workload.max_model_len == 8192
    assert plan.kv_cache_tokens == 2 * 8192
    fixed = plan_of("Qwen/Qwen3-8B", "b60", max_model_len=8192, kv_cache_memory_bytes=GIB)
    assert not fixed.fits
    assert "--kv-cache-memory-bytes 1.00 GiB is too little" in str(fixed.why_not)


@pytest.mark.parametrize("model", ["Qwen/Qwen3-8B", "Qwen/Qwen3.5-9B"])
@pytest.mark.parametrize("gpu", ["b60", "m4-max-64gb", "910b"])
def test_a_cache_that_is_larger_than_what_is_left_does_not_fit(model: str, gpu: str) -> None:
    plan = plan_of(model, gpu, kv_cache_memory_bytes=400 * GIB)
    assert not plan.fits
    assert "--kv-cache-memory-bytes 400.00 GiB" in str(plan.why_not)
    assert plan.short_bytes == -plan.devices[0].free_bytes > 300 * GIB
    fixed = plan_of(model, gpu, kv_cache_memory_bytes=2 * GIB, max_model_len=4096, max_num_seqs=4)
    assert fixed.fits
    assert fixed.devices[0].kv_cache_bytes == fixed.placement.kv_cache_memory_bytes == 2 * GIB
    assert 0 < fixed.kv_cache_tokens * fixed.model.kv_bytes_per_token <= 2 * GIB


def test_states_of_a_hybrid_are_counted() -> None:
    few, many = (plan_of("Qwen/Qwen3.5-9B", "910b", max_num_seqs=count, max_model_len=4096) for count in (1, 16))
    beyond = many.devices[0].kv_cache_bytes - 16 * few.devices[0].kv_cache_bytes
    assert abs(beyond) < 0.01 * many.devices[0].kv_cache_bytes


@pytest.mark.parametrize(
    ("model", "gpu", "tokens_per_s", "source"),
    [
        ("Qwen/Qwen3-8B", "m1-max-64gb", 46.2, "https://github.com/brand-o/normiebench/issues/40: Llama 3.1 8B Q4_K_M"),
        ("Qwen/Qwen3-8B", "m4-16gb", 20.87, "https://github.com/brand-o/normiebench/issues/3: Llama 3.1 8B Q4_K_M"),
        (
            "Qwen/Qwen3.5-27B",
            "arc-pro-b70",
            28.2,
            "https://github.com/ggml-org/llama.cpp/issues/23533: Qwen3.8-27B in GPTQ's 4 bit, vLLM 0.21",
        ),
    ],
)
def test_published_runs_lie_within_the_band(model: str, gpu: str, tokens_per_s: float, source: str) -> None:
    """Of models as large as those that were run."""
    speed = speed_of(model, gpu, quant="4bit")
    low, high = speed.latency.around(speed.figures.tpot_ms.mean)
    assert low < 1000 / tokens_per_s < high, source
    assert high / low > 2.5  # a guess looks like one


def test_a_step_reads_what_the_model_reads() -> None:
    """8.2 billion weights in 16 bit, less the embedding, over 0.65 of 546 GB/s."""
    plan, spec = plan_of("Qwen/Qwen3-8B", "m4-max-64gb"), resolve("Qwen/Qwen3-8B").spec
    steps = ENGINE.planner.card_steps(plan, spec, known_gpus()["m4-max-64gb"])
    assert steps is not None
    read = 2 * (8.19e9 - spec.vocab_size * spec.hidden_size)
    assert steps.decode_s(1, 0) == pytest.approx(read / (0.65 * 546e9), rel=0.01)
    assert steps.decode_s(1, 10_000) > steps.decode_s(1, 0)
    assert steps.mixed_s(0, 0, [(2000, 0)]) > 10 * steps.mixed_s(0, 0, [(10, 0)])


def test_an_m5_reads_prompts_as_fast_as_was_published() -> None:
    """https://github.com/ddalcu/mlx-serve/issues/120: prompts of a 27B in 4 bit at 627 to 670 tokens/s, M5 Max."""
    plan = plan_of("Qwen/Qwen3.5-27B", "m5-max-128gb", quant="4bit", max_model_len=8192)
    steps = ENGINE.planner.card_steps(plan, resolve("Qwen/Qwen3.5-27B").spec, known_gpus()["m5-max-128gb"])
    assert steps is not None
    assert 2048 / steps.mixed_s(0, 0, [(2048, 0)]) == pytest.approx(650, rel=0.1)


def test_few_tokens_meet_few_experts() -> None:
    plan, spec = plan_of("Qwen/Qwen3-30B-A3B", "m4-max-128gb"), resolve("Qwen/Qwen3-30B-A3B").spec
    steps = ENGINE.planner.card_steps(plan, spec, known_gpus()["m4-max-128gb"])
    assert steps is not None
    assert steps.decode_s(64, 0) > 5 * steps.decode_s(1, 0)
    assert steps.decode_s(1, 0) == pytest.approx(2 * 3.0e9 / (0.65 * 546e9), rel=0.1)


def test_it_is_registered_and_no_choice_of_engine() -> None:
    assert engine_named(PLAN_ONLY) is ENGINE
    assert PLAN_ONLY not in engine_names()
    assert ENGINE.launch == ""


def test_cards_of_two_makers_share_nothing() -> None:
    mixed = replace(machine("b60"), devices=(*parse_gpu("b60"), *parse_gpu("rtx-4090")))
    with pytest.raises(UsageError, match="Intel Arc Pro B60 stands beside cards of another maker"):
        make_plan(resolve("Qwen/Qwen3-8B"), mixed, plan_request())
