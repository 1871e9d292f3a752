"""Models with an index of sparse attention, residual streams and tables of n-grams: what is planned, and refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from qserve.core.checkpoint import Checkpoint
from qserve.core.hardware import Hardware, parse_gpu
from qserve.core.model_spec import ModelSpec
from qserve.engines.vllm.plan.options import VllmOptions
from qserve.engines.vllm.plan.step_buffers import choice_bytes, lookup_bytes, stream_widths
from qserve.errors import UsageError
from qserve.hub.bundled import bundled_config
from qserve.planner import Plan, make_plan, plan_request
from qserve.units import GIB
from tests.unit.planner.test_make_plan import plan_of

FLASH = "Qwen/Qwen3.8-Flash-Next"
TABLE = 320_001_536 * 160
ON_CARDS = '{"cpu_offload": false}'


def checkpoint_of(quantization: dict[str, Any] | None = None, **text: Any) -> Checkpoint:
    config = bundled_config(FLASH)
    assert config is not None
    config = {**config, "text_config": {**config["text_config"], **text}}
    if quantization is not None:
        config["quantization_config"] = quantization
    return Checkpoint(FLASH, None, config, ModelSpec.from_config(config, FLASH))


def plan_flash(gpu: str, **fixed: Any) -> Plan:
    return plan_of(FLASH, gpu, **{"engine": "vllm", **fixed})


def test_tables_lie_in_the_ram_of_the_machine_unless_they_are_asked_onto_its_cards() -> None:
    in_ram, on_cards = (plan_flash("h200:4", quant="bf16", engram_config=one) for one in (None, ON_CARDS))
    assert (in_ram.placement.offloaded_bytes, on_cards.placement.offloaded_bytes) == ({"cpu": 2 * TABLE}, {})
    more = on_cards.devices[0].weights_bytes - in_ram.devices[0].weights_bytes
    assert more == pytest.approx(2 * TABLE // 4, rel=1e-3)
    assert any("95.37 GiB of the weights are tables of n-grams in pinned RAM" in note for note in in_ram.notes)
    assert not any("tables of n-grams" in note for note in on_cards.notes)
    assert on_cards.engine_args[on_cards.engine_args.index("--engram-config") + 1] == ON_CARDS


@pytest.mark.parametrize(("quant", "num_bytes"), [("bf16", 2 * TABLE), ("fp8", TABLE + 4), ("nvfp4", TABLE + 4)])
def test_a_table_is_as_its_checkpoint_stores_it(quant: str, num_bytes: int) -> None:
    assert plan_flash("b200:2", quant=quant).placement.offloaded_bytes == {"cpu": num_bytes}


def test_a_card_that_shares_its_memory_with_the_cpu_has_the_table_on_it() -> None:
    (card,) = parse_gpu("gb10")
    assert card.shares_ram
    two = Hardware((card, card), 128 * GIB, 128 * GIB, 20)
    plan = make_plan(checkpoint_of(), two, plan_request(engine="vllm", quant="fp8", tensor_parallel_size=2))
    assert plan.placement.offloaded_bytes == {}
    assert plan.devices[0].weights_bytes > 160 * GIB / 2


@pytest.mark.parametrize(("ram_gib", "fits"), [(96, True), (95, False)])
def test_ram_is_judged_where_the_machine_is_here(ram_gib: int, fits: bool) -> None:
    """95.37 GiB of tables. Cards that are only described stand in a machine of unknown RAM."""
    there = Hardware(parse_gpu("h200:4"), ram_gib * GIB, ram_gib * GIB, 16)
    here = replace(there, packages=frozenset({"vllm"}))
    asked = plan_request(engine="vllm", quant="bf16")
    plan = make_plan(checkpoint_of(), here, asked)
    assert plan.fits is fits and make_plan(checkpoint_of(), there, asked).fits
    assert ("376.7 MiB missing of the RAM: tables of n-grams 95.37 GiB" in str(plan.why_not)) is not fits


def test_too_little_ram_has_a_way_out() -> None:
    here = Hardware(parse_gpu("h200:4"), 64 * GIB, 64 * GIB, 16, packages=frozenset({"vllm"}))
    plan = make_plan(checkpoint_of(), here, plan_request(engine="vllm", quant="bf16"))
    changes = {one.change for one in plan.suggestions}
    assert not plan.fits and "tables of n-grams on the cards" in changes


@pytest.mark.parametrize(
    ("gpu", "fixed", "said"),
    [
        ("h200:4", {"pipeline_parallel_size": 2}, "gives to the first stage alone"),
        ("h200:4", {"engine_version": "0.29.0"}, "from 0.30 on"),
        ("h200:4", {"engine": "transformers"}, "which the transformers engine does not serve"),
        ("h200:4", {"dtype": "float16"}, "compute in bfloat16"),
        ("h200:4", {"quant": "fp16"}, "--quant fp16: .*compute in bfloat16"),
        ("h200:4", {"quant": "int8"}, "checkpoints are known in fp8, w4a16, nvfp4"),
        ("h200:4", {"kv_cache_dtype": "fp8_e5m2"}, "bfloat16, fp8, fp8_e4m3; give one of these"),
        ("h200:4", {"num_speculative_tokens": 5}, "keeps 12 keys .*; give 4 or fewer, or 9 to 12, or --block-size 48"),
        ("h200:4", {"num_speculative_tokens": 13}, "keeps 20 keys .*; give 4 or fewer, or 9 to 12, or --block-size 80"),
        (
            "h200:4",
            {"num_speculative_tokens": 13, "block_size": 48},
            "; give 12 or fewer, or 17 to 20, or 41 to 44, or",
        ),
        ("t4:8", {}, "has no bfloat16"),
        (None, {}, "on cards alone"),
    ],
)
def test_what_a_start_would_end_with_is_refused(gpu: str | None, fixed: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        plan_of(FLASH, gpu, **{"engine": "vllm", **fixed})


@pytest.mark.parametrize(
    "fixed",
    [
        {"kv_cache_dtype": "fp8"},
        {"num_speculative_tokens": 4},
        {"num_speculative_tokens": 12},
        {"num_speculative_tokens": 5, "block_size": 48},
        {"dtype": "bfloat16"},
        {"engine_version": "0.30.0"},
    ],
)
def test_what_starts_is_planned(fixed: dict[str, Any]) -> None:
    assert plan_flash("h200:4", **fixed).fits


def test_each_part_is_refused_for_itself() -> None:
    """A model of the family without tables has stages; one that is stored in a format without tables does not start."""
    machine = Hardware(parse_gpu("h200:4"), 64 * GIB, 64 * GIB, 16)
    staged = plan_request(engine="vllm", quant="bf16", tensor_parallel_size=2, pipeline_parallel_size=2)
    assert make_plan(checkpoint_of(ple_layer_ids=None), machine, staged).placement.pipeline_parallel_size == 2
    awq = {"quant_method": "awq", "bits": 4, "group_size": 128}
    with pytest.raises(UsageError, match="is stored by awq, and vLLM loads tables of n-grams beside fp8, modelopt"):
        make_plan(checkpoint_of(awq), machine, plan_request(engine="vllm"))
    with pytest.raises(UsageError, match="has no tables of n-grams; leave it out"):
        plan_of("Qwen/Qwen3-8B", "h200", engine="vllm", engram_config="{}")


@pytest.mark.parametrize("text", ["no", "[]", "3", '{"cpu_offload": 1}', '{"cpu_offload": "false"}'])
def test_an_engram_config_is_an_object_of_true_and_false(text: str) -> None:
    with pytest.raises(UsageError, match="is not a JSON object of true and false"):
        plan_flash("h200:4", engram_config=text)


def test_what_of_an_engram_config_is_not_counted_is_refused() -> None:
    with pytest.raises(UsageError, match=r"names dp_shared_memory, x, .*takes cpu_offload$"):
        plan_flash("h200:4", engram_config='{"x": 1, "dp_shared_memory": true}')
    with pytest.raises(UsageError, match=r"names use_thp, which no table of a Qwen model reads"):
        VllmOptions(engram_config='{"use_thp": true}')
    assert VllmOptions(engram_config='{"cpu_offload": true}').ngram_tables_in_ram
    assert not VllmOptions(engram_config=ON_CARDS).ngram_tables_in_ram


def test_buffers_of_a_step_by_hand() -> None:
    spec = checkpoint_of().spec
    assert choice_bytes(spec, 8192) == 12 * 8192 * (2048 + 3 + 1) * 4
    assert choice_bytes(spec, 8192, drafts=True) == 13 * 8192 * (2048 + 3 + 1) * 4
    assert lookup_bytes(spec, (), "bfloat16", 100) == 100 * (2560 * 2 + 16 * 8)
    assert stream_widths(spec, 0) == 5 * 4 * 2560 + 3 * 2560
    assert stream_widths(spec, 10**6) == 2 * 4 * 2560 + 2560 + 10**6
    bare = replace(spec, index=None, streams=None, ngrams=None)
    assert (choice_bytes(bare, 9), lookup_bytes(bare, (), "bfloat16", 9), stream_widths(bare, 9)) == (0, 0, 9)


@pytest.mark.parametrize(
    ("ratio", "fixed", "said"),
    [
        (3, {}, "--block-size 16: .* keeps 3 keys .*; give --block-size 48"),
        (3, {"block_size": 64}, "--block-size 64: .*; give --block-size 48"),
        (32, {"block_size": 48}, "--block-size 48: .*; give --block-size 32"),
        (16, {"num_speculative_tokens": 1}, "--num-speculative-tokens 1: .* keeps 32 keys .*; leave it out, or"),
    ],
)
def test_the_blocks_of_an_index_divide_those_of_the_cache(ratio: int, fixed: dict[str, Any], said: str) -> None:
    """vllm 0.32 qsa_cache.py: block_size % compress_ratio, with drafts or without."""
    machine = Hardware(parse_gpu("h200:4"), 128 * GIB, 128 * GIB, 16)
    of_ratio = checkpoint_of(indexer_compress_ratio=ratio)
    with pytest.raises(UsageError, match=said):
        make_plan(of_ratio, machine, plan_request(engine="vllm", quant="bf16", **fixed))
    able = plan_request(engine="vllm", quant="bf16", block_size=16 * ratio)
    assert make_plan(of_ratio, machine, able).fits
