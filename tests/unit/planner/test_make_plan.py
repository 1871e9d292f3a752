"""What the planner chooses, what it refuses, and the suggestions that it offers."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from qserve.core.checkpoint import Checkpoint
from qserve.core.hardware import Hardware, parse_gpu
from qserve.core.model_spec import ModelSpec
from qserve.engines.vllm.plan.planner import VllmPlanner
from qserve.errors import UsageError
from qserve.hub.bundled import bundled_config
from qserve.planner import Plan, PlanRequest, make_plan, plan_request
from qserve.planner.candidate import Candidate
from qserve.planner.make import _each_once
from qserve.service.reward import as_scorer
from qserve.service.sharing import make_shared_plan
from qserve.units import GIB


def checkpoint_of(model: str, **changes: Any) -> Checkpoint:
    config = {**(bundled_config(model) or {}), **changes}
    return Checkpoint(model, None, config, ModelSpec.from_config(config, model))


def machine(gpu: str | None, ram_gib: int = 64) -> Hardware:
    return Hardware(parse_gpu(gpu) if gpu else (), ram_gib * GIB, ram_gib * GIB, 8, disk_free_bytes=500 * GIB)


def plan_of(model: str, gpu: str | None, **fixed: Any) -> Plan:
    return make_plan(checkpoint_of(model), machine(gpu), plan_request(**fixed))


def test_32b_in_4_bit_fits_an_rtx_4090() -> None:
    plan = plan_of("Qwen/Qwen3-32B", "rtx-4090", quant="4bit")
    assert plan.fits
    assert (plan.quant.scheme, plan.quant.checkpoint) == ("awq", "Qwen/Qwen3-32B-AWQ")
    assert plan.workload.max_model_len >= 8192
    assert plan.kv_cache_tokens >= plan.workload.max_model_len
    device = plan.devices[0]
    assert device.free_bytes > 0
    assert device.weights_bytes + device.kv_cache_bytes < 0.95 * device.total_bytes


def test_what_has_no_room_for_the_smallest_cache_is_not_tried_with_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most of a search for suggestions is over changes that don't help."""
    tried, fit = [], VllmPlanner.fit

    def counted(self: VllmPlanner, candidate: Candidate, cache_tokens: int) -> Plan:
        tried.append((candidate.quant.scheme, cache_tokens))
        return fit(self, candidate, cache_tokens)

    monkeypatch.setattr(VllmPlanner, "fit", counted)
    request = plan_request(engine="vllm")
    plan = make_plan(checkpoint_of("Qwen/Qwen3-32B"), machine("rtx-3060"), request, with_suggestions=False)
    assert not plan.fits and len({scheme for scheme, _ in tried}) > 1
    assert {tokens for _, tokens in tried} == {16384, 2048} and len(set(tried)) == len(tried)
    tried.clear()
    make_plan(
        checkpoint_of("Qwen/Qwen3-32B"),
        machine("rtx-3060"),
        replace(request, max_model_len=4096),
        with_suggestions=False,
    )
    assert tried and {tokens for _, tokens in tried} == {16384}, "a fixed length takes the place of all caches"


def test_a_candidate_that_a_search_dropped_answers_for_no_other() -> None:
    """A new one may get its place in memory."""
    fit: Any = _each_once(lambda candidate, _: candidate.name)
    request = PlanRequest()
    assert [fit(SimpleNamespace(request=request, name=name), 1) for name in range(9)] == list(range(9))


def test_engine_arguments_say_what_the_plan_says() -> None:
    plan = plan_of("Qwen/Qwen3-32B", "rtx-4090", quant="4bit")
    pairs = dict(zip(plan.engine_args[::2], plan.engine_args[1::2], strict=True))
    assert pairs["--max-num-seqs"] == str(plan.workload.max_num_seqs)
    assert pairs["--max-model-len"] == str(plan.workload.max_model_len)
    assert pairs["--kv-cache-memory-bytes"] == str(plan.placement.kv_cache_memory_bytes)
    assert "--quantization" not in pairs  # an AWQ checkpoint says so itself


def test_what_changes_pages_reaches_the_engine() -> None:
    fixed = {"num_speculative_tokens": 2, "enable_prefix_caching": False, "kv_cache_dtype": "fp8"}
    plan = plan_of("Qwen/Qwen3.5-9B", "h100-sxm", max_model_len=8192, **fixed)
    assert "--no-enable-prefix-caching" in plan.engine_args
    assert '{"method": "mtp", "num_speculative_tokens": 2}' in plan.engine_args
    assert "fp8" in plan.engine_args


def test_32b_on_an_rtx_3060_is_refused_with_three_ways_out() -> None:
    plan = plan_of("Qwen/Qwen3-32B", "rtx-3060", quant="4bit")
    assert not plan.fits
    assert plan.short_bytes > 4 * GIB
    assert plan.why_not is not None
    assert "GiB missing on NVIDIA GeForce RTX 3060" in plan.why_not
    assert len(plan.suggestions) >= 3
    assert all(way.command.startswith("qserve plan --model Qwen/Qwen3-") for way in plan.suggestions)
    assert all(way.cost for way in plan.suggestions)


def test_auto_takes_the_best_quality_that_leaves_room() -> None:
    schemes = [plan_of("Qwen/Qwen3-32B", gpu).quant.scheme for gpu in ("h200", "rtx-5090:2", "rtx-4090")]
    assert schemes == ["bf16", "fp8", "awq"]


def test_two_cards_before_fewer_bits() -> None:
    plan = plan_of("Qwen/Qwen3-14B", "rtx-4090:2")
    assert (plan.quant.scheme, plan.placement.tensor_parallel_size) == ("bf16", 2)


def test_three_cards_make_pipeline_stages_where_heads_do_not_divide() -> None:
    plan = plan_of("Qwen/Qwen3-32B", "rtx-4090:3", quant="bf16", max_model_len=2048)
    assert (plan.placement.tensor_parallel_size, plan.placement.pipeline_parallel_size) == (1, 3)
    assert len(plan.devices) == 3
    assert sum(device.weights_bytes for device in plan.devices) == pytest.approx(61.1 * GIB, rel=0.01)


def test_a_tensor_parallel_size_that_does_not_divide_is_named() -> None:
    with pytest.raises(UsageError, match="64 attention heads don't divide by 3"):
        plan_of("Qwen/Qwen3-32B", "h100-sxm:3", tensor_parallel_size=3)


def test_flags_that_the_engine_does_not_read_are_refused() -> None:
    with pytest.raises(UsageError, match="--tensor-parallel-size, --enforce-eager: vLLM's alone"):
        plan_of("Qwen/Qwen3-8B", "rtx-4090:2", engine="transformers", tensor_parallel_size=2, enforce_eager=True)
    assert plan_of("Qwen/Qwen3-8B", "rtx-4090:2", engine="transformers", tensor_parallel_size=1).fits


def test_speculation_needs_a_head_that_drafts() -> None:
    with pytest.raises(UsageError, match="has no MTP head"):
        plan_of("Qwen/Qwen3-8B", "h100-sxm", num_speculative_tokens=2)


def test_drafts_by_n_grams_are_counted_without_a_head() -> None:
    """Graphs of 1 + k tokens, as with an MTP head; no weights and no cache of one."""
    fixed = {"max_num_seqs": 64, "max_model_len": 4096, "quant": "bf16"}
    plain, drafted = (plan_of("Qwen/Qwen3-8B", "h100-sxm", **fixed, **more) for more in ({}, {"num_ngram_tokens": 3}))
    assert any('"method": "ngram", "num_speculative_tokens": 3' in one for one in drafted.engine_args)
    assert drafted.devices[0].weights_bytes == plain.devices[0].weights_bytes
    assert drafted.model.kv_bytes_per_token == plain.model.kv_bytes_per_token
    assert drafted.devices[0].cuda_graphs_bytes > plain.devices[0].cuda_graphs_bytes


@pytest.mark.parametrize(
    ("model", "fixed", "why"),
    [
        ("Qwen/Qwen3.5-9B", {"num_speculative_tokens": 2}, "are two ways to draft"),
        ("Qwen/Qwen3.5-9B", {}, "its MTP head drafts with --num-speculative-tokens"),
        ("Qwen/Qwen3-8B", {"engine": "transformers"}, "--num-ngram-tokens: vLLM's alone"),
    ],
)
def test_drafts_by_n_grams_that_nothing_counts_are_refused(model: str, fixed: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        plan_of(model, "h100-sxm", num_ngram_tokens=3, **fixed)


def test_more_ranks_than_cards_is_refused() -> None:
    with pytest.raises(UsageError, match="needs 4 cards, but there are 2"):
        plan_of("Qwen/Qwen3-32B", "h100-sxm:2", tensor_parallel_size=4)


def test_a_quantized_checkpoint_is_not_requantized() -> None:
    with pytest.raises(UsageError, match="stored as awq"):
        plan_of("Qwen/Qwen3-32B-AWQ", "rtx-4090", quant="fp8")
    assert plan_of("Qwen/Qwen3-32B-AWQ", "rtx-4090", quant="4bit").quant.scheme == "awq"


def test_in_flight_where_no_sibling_is_known() -> None:
    own = checkpoint_of("Qwen/Qwen3-8B")
    mine = replace(own, id="./mine")
    plan = make_plan(mine, machine("rtx-4090"), PlanRequest(quant="4bit"))
    assert (plan.quant.scheme, plan.quant.in_flight) == ("bnb-nf4", True)
    assert ("--quantization", "bitsandbytes") in zip(plan.engine_args, plan.engine_args[1:], strict=False)
    assert any("vllm-bnb-plugin" in note for note in plan.notes)


def test_no_bf16_before_ampere() -> None:
    assert plan_of("Qwen/Qwen3-4B", "t4").dtype == "float16"


def test_what_the_user_fixes_is_kept() -> None:
    fixed = {"max_model_len": 3000, "max_num_seqs": 7, "max_num_batched_tokens": 777, "gpu_memory_utilization": 0.77}
    plan = plan_of("Qwen/Qwen3-8B", "a100-80gb", **fixed)
    assert plan.workload.max_model_len == 3000
    assert plan.workload.max_num_seqs == 7
    assert plan.workload.max_num_batched_tokens == 777
    assert plan.placement.gpu_memory_utilization == 0.77


def test_neighbours_are_charged_to_themselves() -> None:
    plan = plan_of("Qwen/Qwen3-8B", "memory=80GiB,sm=108,used=40GiB")
    assert plan.fits
    assert plan.placement.gpu_memory_utilization is not None
    assert plan.placement.gpu_memory_utilization < 0.5
    assert plan.devices[0].used_by_others_bytes == 40 * GIB


def test_prompt_logprobs_take_what_the_vocabulary_costs() -> None:
    plain = plan_of("Qwen/Qwen3-8B", "h100-sxm", max_num_batched_tokens=8192)
    scored = plan_of("Qwen/Qwen3-8B", "h100-sxm", max_num_batched_tokens=8192, prompt_logprobs=True)
    more = scored.devices[0].activations_bytes - plain.devices[0].activations_bytes
    assert more == 8192 * 151936 * 4


def test_hybrids_never_get_more_sequences_than_blocks() -> None:
    plan = plan_of("Qwen/Qwen3.5-9B", "rtx-4090", quant="bf16", max_model_len=2048)
    assert plan.fits
    blocks = plan.placement.kv_cache_memory_bytes // (8 * 528 * 4096)
    assert plan.workload.max_num_seqs <= blocks


def test_cpu_plans_for_transformers_with_a_bounded_pool() -> None:
    plan = plan_of("Qwen/Qwen3-0.6B", None)
    assert (plan.engine, plan.placement.device_map) == ("transformers", "cpu")
    assert plan.workload.max_num_seqs >= 64
    assert plan.placement.kv_cache_memory_bytes < 0.35 * 64 * GIB
    assert plan.kv_cache_tokens >= plan.workload.max_model_len


def test_vllm_on_a_cpu_gets_whole_gib_of_cache() -> None:
    plan = plan_of("Qwen/Qwen3-0.6B", None, engine="vllm")
    assert plan.fits
    assert plan.placement.kv_cache_memory_bytes % GIB == 0
    assert plan.placement.kv_cache_memory_bytes < 0.35 * 64 * GIB
    assert f"--kv-cache-memory-bytes {plan.placement.kv_cache_memory_bytes}" in " ".join(plan.engine_args)


def test_a_model_larger_than_ram_is_refused() -> None:
    plan = make_plan(checkpoint_of("Qwen/Qwen3-32B"), machine(None, 24), PlanRequest(quant="bf16"))
    assert not plan.fits
    assert any("4bit" in way.command or "int8" in way.command for way in plan.suggestions)


def test_a_cpu_takes_calibrated_checkpoints_and_quantizes_the_others_with_bitsandbytes() -> None:
    assert plan_of("Qwen/Qwen3-8B", None, quant="4bit").quant.scheme == "awq"
    assert plan_of("Qwen/Qwen3-8B", None, quant="int8").quant.scheme == "bnb-int8"
    assert plan_of("Qwen/Qwen3-30B-A3B", None, quant="4bit").quant.scheme == "gptq-int4"
    assert plan_of("Qwen/Qwen3-30B-A3B", None, quant="int8").quant.scheme == "bnb-int8"


def test_offload_maps_layers_to_ram() -> None:
    plan = plan_of("Qwen/Qwen3-14B", "rtx-3060", quant="bf16", offload="cpu")
    places = plan.placement.device_map
    assert isinstance(places, dict)
    assert plan.engine == "transformers"
    assert places["model.embed_tokens"] == 0
    assert places["lm_head"] == 0  # only layers are offloaded: a step would copy the whole head
    assert places["model.layers.39"] == "cpu"
    assert set(places.values()) == {0, "cpu"}
    assert plan.devices[0].free_bytes >= 0


def test_bnb_leaves_fused_experts_alone_and_says_so() -> None:
    plan = plan_of("Qwen/Qwen3-30B-A3B", "h100-sxm", quant="bnb-nf4", engine="transformers")
    assert plan.devices[0].weights_bytes > 50 * GIB
    assert any("bitsandbytes#1849" in note for note in plan.notes)


def test_a_reward_model_needs_no_cache() -> None:
    reward = checkpoint_of("Qwen/Qwen2.5-3B", architectures=["Qwen2ForSequenceClassification"], num_labels=1)
    plan = make_plan(reward, machine("l4"), PlanRequest(engine="transformers"))
    assert plan.fits
    assert plan.devices[0].kv_cache_bytes == 0
    assert plan.devices[0].weights_bytes == pytest.approx(5.79 * GIB, rel=0.02)


def test_chat_and_reward_share_a_card() -> None:
    chat, reward = checkpoint_of("Qwen/Qwen3-8B"), checkpoint_of("Qwen/Qwen2.5-3B")
    shared = make_shared_plan(chat, as_scorer(reward), machine("a100-40gb"), PlanRequest(), PlanRequest())
    assert shared.fits
    card = shared.chat.devices[0]
    assert card.used_by_others_bytes > shared.reward.devices[0].weights_bytes
    assert card.free_bytes >= 0


def test_two_cards_keep_chat_and_reward_apart() -> None:
    chat, reward = checkpoint_of("Qwen/Qwen3-8B"), checkpoint_of("Qwen/Qwen2.5-3B")
    shared = make_shared_plan(chat, as_scorer(reward), machine("rtx-4090:2"), PlanRequest(), PlanRequest())
    assert shared.fits
    assert "last card" in shared.where
    assert shared.chat.devices[0].used_by_others_bytes == 0


@pytest.mark.parametrize("version", ["0.4.0", "zero"])
def test_releases_that_nobody_measured_are_refused(version: str) -> None:
    with pytest.raises(UsageError, match="--engine-version"):
        plan_of("Qwen/Qwen3-8B", "h100-sxm", engine_version=version)


def test_versions_are_told_apart() -> None:
    old = plan_of("Qwen/Qwen3-14B", "h100-sxm", engine_version="0.16.0", max_model_len=8192)
    new = plan_of("Qwen/Qwen3-14B", "h100-sxm", engine_version="0.17.0", max_model_len=8192)
    assert old.devices[0].activations_bytes > 2 * new.devices[0].activations_bytes


def test_graphs_come_out_of_the_cache_from_0_20_on() -> None:
    fixed = {"max_model_len": 8192, "gpu_memory_utilization": 0.9, "max_num_seqs": 256}
    before = plan_of("Qwen/Qwen3-8B", "a100-80gb", engine_version="0.19.1", **fixed)
    since = plan_of("Qwen/Qwen3-8B", "a100-80gb", engine_version="0.20.0", **fixed)
    less = before.placement.kv_cache_memory_bytes - since.placement.kv_cache_memory_bytes
    assert less == since.devices[0].cuda_graphs_bytes > 0.5 * GIB


def test_the_whole_card_leaves_no_room_for_the_context() -> None:
    plan = plan_of("Qwen/Qwen3-8B", "rtx-4090", gpu_memory_utilization=1.0)
    assert not plan.fits
    assert plan.devices[0].free_bytes < 0
    assert plan.suggestions[0].change == "let the planner choose the memory fraction"


@pytest.mark.parametrize("engine", ["vllm", "transformers"])
def test_a_reward_worker_beside_a_chat_model_is_capped_at_its_share(engine: str) -> None:
    """Planned first and alone, it had the whole card: what its allocator may keep is decided by `keep_to_plan`."""
    chat, reward = checkpoint_of("Qwen/Qwen2.5-7B-Instruct"), checkpoint_of("Qwen/Qwen2.5-3B")
    shared = make_shared_plan(chat, as_scorer(reward), machine("rtx-4090"), PlanRequest(engine=engine), PlanRequest())  # type: ignore[arg-type]
    theirs, own = shared.chat.devices[0], shared.reward.devices[0]
    held = theirs.weights_bytes + theirs.kv_cache_bytes + theirs.activations_bytes + theirs.cuda_graphs_bytes
    assert own.used_by_others_bytes == held + theirs.runtime_bytes
    cap = own.total_bytes - own.used_by_others_bytes - own.runtime_bytes
    assert own.weights_bytes + own.activations_bytes <= cap < own.total_bytes / 2
    assert theirs.used_by_others_bytes == own.weights_bytes + own.activations_bytes + own.runtime_bytes
