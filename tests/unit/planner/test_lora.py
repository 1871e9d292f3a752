"""LoRA adapters in vLLM: bytes by hand, over ranks and stages, as a term of the plan and as flags of the engine."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from qserve.cli.plan.command import command
from qserve.core.checkpoint import Checkpoint
from qserve.core.hardware import Hardware, parse_gpu
from qserve.core.model_spec import ModelSpec
from qserve.engines.vllm.plan.options import Adapters
from qserve.engines.vllm.plan.terms.adapters import adapted_modules, adapter_step_bytes, module_bytes
from qserve.engines.vllm.plan.versions import VllmVersion
from qserve.errors import UsageError
from qserve.hub.bundled import bundled_config
from qserve.planner import make_plan, plan_request
from qserve.units import GIB, MIB

NOW = VllmVersion.parse("0.32.0")


def spec_of(name):
    return ModelSpec.from_config(bundled_config(name), name)


def total(name, adapters, ranks=1, version=NOW, dtype="bfloat16"):
    modules = adapted_modules(spec_of(name), adapters, version, ranks)
    return sum(module_bytes(module, adapters, dtype, ranks) for module in modules)


def plan_of(name, gpu, **fixed):
    config = bundled_config(name)
    checkpoint = Checkpoint(name, None, config, ModelSpec.from_config(config, name))
    machine = Hardware(parse_gpu(gpu), 256 * GIB, 256 * GIB, 16)
    return make_plan(checkpoint, machine, plan_request(engine="vllm", quant="bf16", **fixed))


def test_a_dense_model_by_hand():
    # Qwen3-8B: 36 layers, hidden 4096, q 4096, k and v 1024 each, MLP 12288, vocabulary 151936
    rank = 16
    qkv = rank * (3 * 4096 + 4096 + 2 * 1024)
    o = rank * (4096 + 4096)
    gate_up = rank * (2 * 4096 + 2 * 12288)
    down = rank * (12288 + 4096)
    embeddings = 2 * rank * (151936 + 4096)  # embed_tokens and lm_head
    assert total("Qwen/Qwen3-8B", Adapters(1, rank)) == 2 * (36 * (qkv + o + gate_up + down) + embeddings)


def test_qwen2_adapts_no_embeddings_and_qwen3_does_since_its_release():
    names = {module.name for module in adapted_modules(spec_of("Qwen/Qwen2.5-7B"), Adapters(), NOW)}
    assert names == {"qkv_proj", "o_proj", "gate_up_proj", "down_proj"}
    old = {module.name for module in adapted_modules(spec_of("Qwen/Qwen3-8B"), Adapters(), VllmVersion.parse("0.11.2"))}
    assert "embed_tokens" not in old


def test_adapters_and_rank_multiply():
    one = total("Qwen/Qwen3-8B", Adapters(1, 16))
    assert total("Qwen/Qwen3-8B", Adapters(4, 64)) == 16 * one
    assert total("Qwen/Qwen3-8B", Adapters(1, 16), dtype="float32") == 2 * one


def test_ranks_split_what_the_layer_splits():
    modules = {m.name: m for m in adapted_modules(spec_of("Qwen/Qwen3-8B"), Adapters(), NOW, 4)}
    assert modules["qkv_proj"].inputs == 4096 and modules["qkv_proj"].outputs == (1024, 256, 256)
    assert modules["o_proj"].inputs == 1024 and modules["o_proj"].outputs == (4096,)
    replicated = {m.name: m for m in adapted_modules(spec_of("Qwen/Qwen3-8B"), Adapters(), NOW, 16)}
    assert replicated["qkv_proj"].outputs == (256, 128, 128)  # 8 KV heads on 16 ranks: one each, twice
    half = total("Qwen/Qwen3-8B", Adapters(), 2)
    assert half > total("Qwen/Qwen3-8B", Adapters()) / 2
    assert total("Qwen/Qwen3-8B", Adapters(fully_sharded=True), 2) < half


def test_each_routed_expert_has_an_adapter_of_its_own():
    # Qwen3-30B-A3B: 48 sparse layers of 128 experts, hidden 2048, expert width 768
    modules = [m for m in adapted_modules(spec_of("Qwen/Qwen3-30B-A3B"), Adapters(), NOW) if m.name == "experts"]
    elements = sum(module_bytes(m, Adapters(1, 16), "bfloat16") for m in modules) // 2
    assert elements == 48 * 128 * 16 * (2 * 2048 + 2 * 768 + 768 + 2048)
    before = adapted_modules(spec_of("Qwen/Qwen3-30B-A3B"), Adapters(), VllmVersion.parse("0.11.0"))
    assert "experts" not in {module.name for module in before}


def test_multimodal_sparse_models_share_the_a_of_gate_and_up():
    (joined,) = (
        module
        for module in adapted_modules(spec_of("Qwen/Qwen3.6-35B-A3B"), Adapters(), NOW)
        if module.name == "experts" and module.split == "column"
    )
    moe = spec_of("Qwen/Qwen3.6-35B-A3B").moe
    assert joined.outputs == (2 * moe.moe_intermediate_size,)


def test_linear_attention_has_four_parts_in_qwen3_5_and_one_in_qwen3_next():
    for name, parts in (("Qwen/Qwen3.8-27B", 4), ("Qwen/Qwen3-Next-80B-A3B-Instruct", 1)):
        modules = {m.name: m for m in adapted_modules(spec_of(name), Adapters(), NOW)}
        assert len(modules["in_proj_qkvz"].outputs) == parts


def test_targets_leave_the_others_out():
    named = adapted_modules(spec_of("Qwen/Qwen3-8B"), Adapters(targets=("q_proj", "down_proj")), NOW)
    assert {module.name for module in named} == {"qkv_proj", "down_proj"}


def test_routed_tokens_take_more_where_they_are_sorted_by_adapter():
    spec = spec_of("Qwen/Qwen3-30B-A3B")
    plain = adapter_step_bytes(spec, Adapters(4, 64), NOW, 8192, False)
    assert plain == 2 * 8192 * 8 * 64 * 2
    assert adapter_step_bytes(spec, Adapters(4, 64), NOW, 8192, True) > 4 * plain
    assert adapter_step_bytes(spec_of("Qwen/Qwen3-8B"), Adapters(4, 64), NOW, 8192, True) == 0


def test_a_plan_has_them_as_a_term_and_takes_them_from_the_cache():
    fixed = {"gpu_memory_utilization": 0.9, "max_num_seqs": 64, "max_num_batched_tokens": 2048, "enforce_eager": True}
    without = plan_of("Qwen/Qwen3-8B", "rtx-4090", **fixed)
    adapted = plan_of("Qwen/Qwen3-8B", "rtx-4090", **fixed, enable_lora=True, max_loras=4, max_lora_rank=64)
    (term,) = (term for term in adapted.devices[0].terms if term.name == "LoRA adapters")
    by_hand = total("Qwen/Qwen3-8B", Adapters(4, 64))
    assert by_hand <= term.num_bytes <= by_hand + 64 * MIB  # blocks of the allocator
    assert without.devices[0].kv_cache_bytes - adapted.devices[0].kv_cache_bytes == term.num_bytes
    assert adapted.devices[0].weights_bytes - without.devices[0].weights_bytes == term.num_bytes
    assert "4 adapters × rank 64" in term.formula and "qkv_proj" in term.formula and "lora" in term.source
    assert any("--enable-lora keeps" in note for note in adapted.notes)


def test_graphs_are_captured_with_and_without_adapters():
    fixed = {"max_num_seqs": 64, "max_num_batched_tokens": 2048, "engine_version": "0.19.0"}
    plain, adapted = (plan_of("Qwen/Qwen3-8B", "h100", **fixed, enable_lora=on) for on in (False, True))
    ratio = adapted.devices[0].cuda_graphs_bytes / plain.devices[0].cuda_graphs_bytes
    assert ratio == pytest.approx(3.1, abs=0.01)
    assert "with adapters" in next(t.formula for t in adapted.devices[0].terms if t.name == "CUDA graphs")


def test_stages_hold_their_layers_and_their_end_of_the_model():
    plan = plan_of("Qwen/Qwen3-8B", "rtx-4090:2", pipeline_parallel_size=2, enable_lora=True, max_lora_rank=64)
    terms = [next(t for t in device.terms if t.name == "LoRA adapters") for device in plan.devices]
    assert "embed_tokens" in terms[0].formula and "embed_tokens" not in terms[1].formula
    assert "lm_head" in terms[1].formula and "lm_head" not in terms[0].formula
    assert sum(t.num_bytes for t in terms) == pytest.approx(total("Qwen/Qwen3-8B", Adapters(1, 64)), rel=0.05)


def test_the_engine_is_told():
    adapters = {"enable_lora": True, "max_loras": 2, "max_lora_rank": 8, "lora_target_modules": "q_proj, o_proj"}
    args = plan_of("Qwen/Qwen3-8B", "rtx-4090", **adapters).engine_args
    assert "--enable-lora" in args and args[-3:] == ("--lora-target-modules", "q_proj", "o_proj")
    assert args[args.index("--max-loras") + 1] == "2" and args[args.index("--max-lora-rank") + 1] == "8"


@pytest.mark.parametrize(
    ("fixed", "message"),
    [
        ({"max_loras": 4}, "--max-loras is for adapters, and they are off; add --enable-lora"),
        ({"enable_lora": True, "max_lora_rank": 24}, "--max-lora-rank 24: vLLM takes 1, 8, 16, .*; 32 holds"),
        ({"enable_lora": True, "lora_target_modules": "attention"}, "has no such module; it has qkv_proj"),
        (
            {"enable_lora": True, "fully_sharded_loras": True, "max_lora_rank": 1, "tensor_parallel_size": 2},
            "a rank of 1 does not divide by 2 cards",
        ),
    ],
)
def test_what_vllm_would_refuse_is_refused(fixed, message):
    with pytest.raises(UsageError, match=message):
        plan_of("Qwen/Qwen3-8B", "rtx-4090:2", **fixed)


def test_the_transformers_engine_has_none():
    with pytest.raises(UsageError, match="--enable-lora: vLLM's alone"):
        config = bundled_config("Qwen/Qwen3-8B")
        checkpoint = Checkpoint("m", None, config, ModelSpec.from_config(config, "m"))
        machine = Hardware((), 64 * GIB, 64 * GIB, 16)
        make_plan(checkpoint, machine, plan_request(engine="transformers", enable_lora=True))


@pytest.mark.parametrize(
    "words",
    ["--enable-lora --max-loras 4 --max-lora-rank 64", "--seed 7 --enable_lora --max_loras=4 --max-lora-rank=64"],
)
def test_adapters_among_the_engines_own_flags_are_counted(words):
    base = ["--model", "Qwen/Qwen3-8B", "--gpu", "rtx-4090", "--quant", "bf16", "--max-num-seqs", "64", "--json"]
    by_flags = CliRunner().invoke(command, [*base, "--enable-lora", "--max-loras", "4", "--max-lora-rank", "64"])
    by_words = CliRunner().invoke(command, [*base, "--engine-args", words])
    assert by_flags.exit_code == by_words.exit_code == 0
    plans = [json.loads(done.stdout) for done in (by_words, by_flags)]
    assert [plan.pop("next_command").startswith("qserve up ") for plan in plans] == [True, True]
    assert plans[0] == plans[1]
