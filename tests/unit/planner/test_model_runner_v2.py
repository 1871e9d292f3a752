"""vLLM's second model runner and its compiler, in the account: what the profile run of a first start counts."""

from __future__ import annotations

import pytest

from qserve.core.hardware import known_gpus
from qserve.core.model_spec import ModelSpec
from qserve.engines.vllm.plan.terms.activations import activation_peak, compile_peak
from qserve.engines.vllm.plan.trial import penalty_bytes
from qserve.engines.vllm.plan.versions import VllmVersion
from qserve.hub.bundled import bundled_config
from qserve.planner import make_plan, plan_request
from qserve.units import GIB, MIB
from tests.unit.planner.test_make_plan import checkpoint_of, machine, plan_of


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
    assert runs("Qwen/Qwen2-57B-A14B-Instruct", "0.24.0")
    assert [runs("Qwen/Qwen3-30B-A3B", release) for release in ("0.28.0", "0.29.0")] == [False, True]
    assert not runs("Qwen/Qwen3.5-9B", "0.28.0")
    assert runs("Qwen/Qwen3.5-9B", "0.29.0")


def test_it_takes_graphs_from_the_cache_from_0_29_on() -> None:
    """Up to 0.28 its estimate was 0; the first runner's models lost theirs from 0.20 on."""
    dense, hybrid = spec_of("Qwen/Qwen3-8B"), spec_of("Qwen/Qwen3.5-9B")
    assert [VllmVersion.parse(r).subtracts_cuda_graphs(dense) for r in ("0.20.0", "0.28.0", "0.29.0")] == [
        True,
        False,
        True,
    ]
    assert VllmVersion.parse("0.28.0").subtracts_cuda_graphs(hybrid)


def test_a_first_start_copies_the_embedding() -> None:
    """1.449 GiB of the embedding and two residual streams of 2048 tokens, less what cuBLAS keeps: 1.46 GiB are logged.

    That is Qwen3-14B in 0.28 on an RTX 5090, where cuBLAS keeps 32 MiB. 0.26 has nothing taken off.
    """
    spec, version = spec_of("Qwen/Qwen3-14B"), VllmVersion.parse("0.28.0")
    copied = compile_peak(spec, version, 2048)
    assert copied == 151936 * 5120 * 2 + 4 * 2048 * 5120
    peak = activation_peak(spec, known_gpus()["rtx-5090"], version, 256, 2048, is_packed=True)
    assert peak == copied - 32 * MIB
    assert peak / GIB == pytest.approx(1.46, abs=0.005)
    assert activation_peak(spec, known_gpus()["l40s"], VllmVersion.parse("0.26.0"), 256, 2048) == copied
    assert compile_peak(spec, version, 2048, 2) == 151936 * 5120 + 4 * 2048 * 5120


def test_a_piece_of_the_compiled_graph_has_its_inputs_to_the_end() -> None:
    """Later starts: Qwen3-8B 0.19 GiB, Qwen2.5-0.5B of 32768 tokens 1.06 in 0.26, Qwen3-32B-AWQ 0.33."""
    logged = (
        ("Qwen/Qwen3-8B", "rtx-4090", "0.27.1", 2048, False, 0.19),
        ("Qwen/Qwen2.5-0.5B", "rtx-4080", "0.26.0", 32768, False, 1.06),
        ("Qwen/Qwen3-32B", "rtx-5090", "0.28.0", 2048, True, 0.33),
    )
    for model, card, release, tokens, is_packed, peak in logged:
        steps = {"compiles": False, "is_packed": is_packed}
        version = VllmVersion.parse(release)
        planned = activation_peak(spec_of(model), known_gpus()[card], version, 256, tokens, **steps)
        assert planned / GIB == pytest.approx(peak, abs=0.005), model


def test_eagerly_pythons_names_keep_four_streams() -> None:
    """Whole prompts of the first engine (0.6.6: 1.09 GiB, 0.8: 4.35) and --enforce-eager in 0.28 (0.5)."""
    logged = (
        ("Qwen/Qwen2.5-7B", "rtx-3090", "0.6.6", 16, 8192, 1.09),
        ("Qwen/Qwen2.5-7B", "v100-32gb", "0.8.5", 256, 32768, 4.35),
        ("Qwen/Qwen2.5-1.5B", "rtx-4090", "0.28.0", 256, 8192, 0.50),
    )
    for model, card, release, seqs, tokens, peak in logged:
        version = VllmVersion.parse(release)
        planned = activation_peak(
            spec_of(model), known_gpus()[card], version, seqs, tokens, compiles=False, is_eager=True
        )
        assert planned / GIB == pytest.approx(peak, abs=0.005), model


def test_drafts_are_verified_in_the_profile_run_of_the_first_runner() -> None:
    spec, card, version = spec_of("Qwen/Qwen3.5-9B"), known_gpus()["rtx-5090"], VllmVersion.parse("0.20.0")
    plain, drafting = (activation_peak(spec, card, version, 256, 2048, drafts=drafts) for drafts in (False, True))
    assert drafting - plain == (26 - 14) * 256 * spec.vocab_size


def test_nothing_is_compiled_eagerly_nor_beside_a_vision_encoder() -> None:
    spec, version = spec_of("Qwen/Qwen3-14B"), VllmVersion.parse("0.29.0")
    card = known_gpus()["l40s"]
    assert activation_peak(spec, card, version, 256, 2048, compiles=False) < GIB
    assert compile_peak(spec_of("Qwen/Qwen3.5-9B"), version, 2048) == 0
    assert compile_peak(spec, VllmVersion.parse("0.19.0"), 2048) == 0


def test_a_model_that_could_take_images_and_does_not_is_given_token_ids() -> None:
    """27B in W4A16 on an RTX 4090 had 1.52 GiB of KV cache where 3.23 was planned: the embedding was copied."""
    spec, version = spec_of("Qwen/Qwen3.5-27B"), VllmVersion.parse("0.27.1")
    copied = 2 * spec.vocab_size * spec.hidden_size
    assert compile_peak(spec, version, 2048, takes_media=False) == copied + 4 * 2048 * spec.hidden_size
    fixed = {"engine_version": "0.27.1", "max_model_len": 8192}
    plans = {
        name: plan_of("Qwen/Qwen3.5-27B", "h100-80gb", **fixed, **options)
        for name, options in {
            "media": {},
            "text": {"language_model_only": True},
            "no items": {"limit_mm_per_prompt": '{"image": 0, "video": 0}'},
            "warm": {"language_model_only": True, "warm_compile_cache": True},
            "eager": {"language_model_only": True, "enforce_eager": True},
        }.items()
    }
    peaks = {name: plan.devices[0].activations_bytes for name, plan in plans.items()}
    assert peaks["text"] == peaks["no items"] > copied > peaks["warm"]
    assert "compiler, first start only" not in str([term.formula for term in plans["media"].devices[0].terms])


def test_penalties_are_counted_for_every_sequence() -> None:
    spec, version = spec_of("Qwen/Qwen3-14B"), VllmVersion.parse("0.29.0")
    assert penalty_bytes(spec, version, 256) == 256 * (151936 * 4 + 151936 // 32 * 4)
    assert penalty_bytes(spec, VllmVersion.parse("0.19.0"), 256) == 0
    assert (
        penalty_bytes(spec_of("Qwen/Qwen3-0.6B", architectures=["Qwen3ForSequenceClassification"]), version, 256) == 0
    )


def test_before_0_27_nobody_is_charged_for_them() -> None:
    fixed = {"engine": "vllm", "max_num_seqs": 256, "max_model_len": 4096, "warm_compile_cache": True, "quant": "bf16"}
    old, new = (plan_of("Qwen/Qwen3-8B", "rtx-4090", engine_version=r, **fixed) for r in ("0.24.0", "0.27.1"))
    terms = [{term.name: term.num_bytes for term in plan.devices[0].terms} for plan in (old, new)]
    counts = 256 * (151936 * 4 + 151936 // 32 * 4)
    assert terms[0]["penalties"] == counts
    assert terms[0]["non-torch"] < counts < terms[1]["non-torch"]
    assert "penalties" not in terms[1]


def test_buffers_of_fused_experts_are_gone_and_not_in_the_peak() -> None:
    """Qwen3-30B-A3B-GPTQ-Int4 in 0.28, eagerly, 8192 tokens, RTX 5090: 16.66 GiB gone, 0.53 of peak, 11.03 of cache."""
    packed = {"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128}}
    steps = {"max_num_seqs": 256, "max_num_batched_tokens": 8192, "max_model_len": 2048}
    request = plan_request(
        engine="vllm", engine_version="0.28.0", gpu_memory_utilization=0.9, enforce_eager=True, **steps
    )
    plan = make_plan(checkpoint_of("Qwen/Qwen3-30B-A3B", **packed), machine("rtx-5090"), request)
    device = plan.devices[0]
    terms = {term.name: term.num_bytes for term in device.terms}
    assert terms["kept buffers"] == 8192 * 8 * (2048 + 2048) * 2 + 4 * 170 * 151936
    assert (device.weights_bytes + terms["non-torch"] + terms["kept buffers"]) / GIB == pytest.approx(16.66, abs=0.04)
    assert device.activations_bytes / GIB == pytest.approx(0.53, abs=0.03)
    assert device.kv_cache_bytes / GIB == pytest.approx(11.03, abs=0.02)


def test_the_plan_says_so() -> None:
    plan = plan_of("Qwen/Qwen3-8B", "rtx-4090", engine="vllm", engine_version="0.29.0", max_num_seqs=64, quant="bf16")
    terms = {term.name: term.formula for term in plan.devices[0].terms}
    assert "compiler, first start only, 2·151936·4096/1" in terms["activations"]
    assert "penalties 64·151936" in terms["non-torch"]
    assert "− graphs" in terms["KV cache"]
