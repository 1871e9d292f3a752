"""Every setting of vLLM's parser has a row that says what it does to the plan, and the rows hold."""

from __future__ import annotations

import pytest

from qserve.engines.vllm.launch.command import command
from qserve.engines.vllm.plan.counted_flags import with_counted_flags
from qserve.engines.vllm.plan.flag_table import flag_table, setting_of
from qserve.errors import UsageError
from qserve.planner import PlanRequest
from qserve.planner.engine import option_value
from tests.unit.engines.vllm.builders import parser_for, plan_of, spec_of

PLAN = plan_of(quant="bf16", max_model_len=1000, max_num_seqs=8, kv_cache_memory_bytes=70_000_000)

LATEST = ("0.32.0", "0.33.0")


def settings(release: str = "0.32.0") -> set[str]:
    return {flag.dest for flag in parser_for(release).flags.values()}


@pytest.mark.parametrize("release", LATEST)
def test_every_flag_of_the_latest_releases_has_a_row(release: str) -> None:
    assert settings(release) - flag_table().known == set()


def test_every_row_is_a_flag_of_them_and_stands_once() -> None:
    table = flag_table()
    rows = [*table.planned, *table.owned, *table.refused, *table.limited, *table.harmless]
    assert len(rows) == len(set(rows))
    assert set(rows) - set().union(*map(settings, LATEST)) == {
        "model_tag"
    }  # vLLM's own command names the model without a flag


@pytest.mark.parametrize("release", LATEST)
def test_option_strings_lead_to_their_settings(release: str) -> None:
    """`qserve plan` reads --engine-args where no vLLM is installed, hence without its parser."""
    wrong = {
        name: setting_of(name)[0]
        for name, flag in parser_for(release).flags.items()
        if setting_of(name)[0] != flag.dest and not name.startswith("-dp") and flag.dest != "help"
    }
    assert wrong == {}


REFUSED = (
    "--cpu-offload-gb 4",
    "--kv-offloading-size 8",
    "--enable-cumem-allocator",
    "--enable-expert-parallel",
    "-ep",
    "-dcp 2",
    "--compilation-config '{\"mode\": 0}'",
    "-O0",
    "--enable-sleep-mode --sleep-mode-offload-cudagraph",
    "--mm-ipc-gpu-memory-gb 1",
    "--mm-processor-cache-gb 64",
    "--hf-overrides '{\"num_hidden_layers\": 2}'",
    "--hf-overrides.num_hidden_layers=2",
    "--use-fp64-gumbel",
    "--enable-tower-connector-lora",
    "--num-gpu-blocks-override 9",
    "-q awq",
    '--speculative-config \'{"method": "ngram", "num_speculative_tokens": 3}\'',
    '--speculative-config \'{"method": ["mtp"], "num_speculative_tokens": 3}\'',
    '--speculative-config \'{"model": "Qwen/Qwen3-0.6B", "num_speculative_tokens": 3}\'',
    "--spec-method eagle3",
    "--spec-model Qwen/Qwen3-0.6B --spec-tokens 3",
)


@pytest.mark.parametrize("extra", REFUSED)
def test_what_changes_memory_uncounted_is_refused_where_it_is_planned(extra: str) -> None:
    with pytest.raises(UsageError, match="--engine-args"):
        with_counted_flags(PlanRequest(engine="vllm"), extra)


@pytest.mark.parametrize("extra", REFUSED)
def test_and_where_it_is_started(parser, extra: str) -> None:
    with pytest.raises(UsageError, match="--engine-args"):
        command(spec_of(PLAN), parser, extra, {})


@pytest.mark.parametrize(
    ("extra", "field", "value"),
    [
        ('--speculative-config \'{"method": "mtp", "num_speculative_tokens": 3}\'', "num_speculative_tokens", 3),
        ('-sc \'{"method": "qwen3_next_mtp", "num_speculative_tokens": 2}\'', "num_speculative_tokens", 2),
        ("--spec-method mtp --spec-tokens 2", "num_speculative_tokens", 2),
        ("--max-cudagraph-capture-size 16", "max_cudagraph_capture_size", 16),
        ("--max_num_batched_tokens=4k", "max_num_batched_tokens", 4000),
        ("-tp 2", "tensor_parallel_size", 2),
        ("--gpu-memory-utilization 0.8", "gpu_memory_utilization", 0.8),
        ("--no-enable-prefix-caching", "enable_prefix_caching", False),
        ("--enforce-eager", "enforce_eager", True),
        ("--enable-sleep-mode", "enable_sleep_mode", True),
        ("--performance-mode interactivity", "performance_mode", "interactivity"),
        ("--performance_mode=throughput", "performance_mode", "throughput"),
        ("--performance-mode balanced", "performance_mode", "balanced"),
        ("--max-model-len -1", "max_model_len", None),
        ("--hf-overrides.rope_scaling.factor=2", "hf_overrides", '{"rope_scaling": {"factor": 2}}'),
    ],
)
def test_what_is_planned_is_counted_wherever_it_is_given(extra: str, field: str, value: object) -> None:
    assert option_value(with_counted_flags(PlanRequest(engine="vllm"), extra), field) == value


def test_negatives_that_0_33_shows_say_what_the_older_ones_do() -> None:
    """`--disable-x` beside `--no-enable-x`, and `--enable-x` beside `--no-disable-x`."""
    request = with_counted_flags(PlanRequest(engine="vllm"), "--disable-prefix-caching")
    assert option_value(request, "enable_prefix_caching") is False
    assert with_counted_flags(PlanRequest(engine="vllm"), "--disable-lora") == PlanRequest(engine="vllm")
    newest = parser_for("0.33.0")
    argv = command(spec_of(PLAN), newest, "--disable-lora --enable-custom-all-reduce", {}).argv
    assert argv[-2:] == ("--disable-lora", "--enable-custom-all-reduce")
    assert command(spec_of(PLAN), newest, "--disable-uvicorn-access-log", {}).argv.count("--disable-uvicorn-access-log")
    with pytest.raises(UsageError, match="--enable-uvicorn-access-log contradicts --disable-uvicorn-access-log"):
        command(spec_of(PLAN), newest, "--enable-uvicorn-access-log", {})


def test_flags_of_qserves_own_win() -> None:
    request = PlanRequest(engine="vllm", max_num_seqs=4)
    assert with_counted_flags(request, "--max-num-seqs 9").max_num_seqs == 4


def test_drafts_and_graphs_are_in_the_plan_and_on_the_command_line(parser) -> None:
    plan = plan_of("Qwen/Qwen3.5-4B", "rtx-4090", quant="bf16", num_speculative_tokens=2, max_cudagraph_capture_size=16)
    without = plan_of("Qwen/Qwen3.5-4B", "rtx-4090", quant="bf16", num_speculative_tokens=2)
    assert plan.devices[0].cuda_graphs_bytes < without.devices[0].cuda_graphs_bytes
    words = "--spec-method qwen3_next_mtp --spec-tokens 2 --max-cudagraph-capture-size 16"
    argv = command(spec_of(plan), parser, words, {}).argv
    assert argv.count("--speculative-config") == argv.count("--max-cudagraph-capture-size") == 1
    assert "--spec-tokens" not in argv
    with pytest.raises(UsageError, match="contradicts the plan"):
        command(spec_of(plan), parser, "--spec-tokens 3", {})


def test_sleep_mode_and_performance_modes_are_in_the_plan_and_on_the_command_line(parser) -> None:
    without = plan_of("Qwen/Qwen3-8B", "l40s", max_num_seqs=64)
    plan = plan_of("Qwen/Qwen3-8B", "l40s", max_num_seqs=64, enable_sleep_mode=True, performance_mode="interactivity")
    was, now = without.devices[0], plan.devices[0]
    assert now.runtime_bytes > was.runtime_bytes
    assert now.cuda_graphs_bytes > was.cuda_graphs_bytes * 1.2
    assert plan.kv_cache_tokens < without.kv_cache_tokens
    assert any("Asleep at level 1 the weights lie in RAM, 15.3 GiB" in note for note in plan.notes)
    argv = command(spec_of(plan), parser, "--enable-sleep-mode --performance-mode interactivity", {}).argv
    assert argv.count("--enable-sleep-mode") == argv.count("--performance-mode") == 1
    with pytest.raises(UsageError, match="contradicts the plan"):
        command(spec_of(without), parser, "--enable-sleep-mode", {})


def test_throughput_leaves_the_limits_that_a_plan_sets() -> None:
    same = [plan_of("Qwen/Qwen3-8B", "l40s", performance_mode=mode).devices for mode in ("balanced", "throughput")]
    assert same[0] == same[1]


def test_segments_that_grow_hold_weights_in_their_own_bytes_and_pin_none() -> None:
    usual = plan_of("Qwen/Qwen2.5-14B-Instruct", "a100-80gb").devices[0]
    plan = plan_of("Qwen/Qwen2.5-14B-Instruct", "a100-80gb", expandable_segments=True).devices[0]
    assert plan.weights_bytes < usual.weights_bytes
    assert not any(term.name == "pinned segment" and term.num_bytes for term in plan.terms)


YARN = '{"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}}'


def test_a_context_that_yarn_stretches_is_planned_and_started(parser) -> None:
    plan = plan_of("Qwen/Qwen3-8B", "rtx-4090", quant="4bit", max_model_len=100_000, hf_overrides=YARN)
    assert plan.workload.max_model_len == 100_000
    argv = command(spec_of(plan), parser, f"--hf-overrides '{YARN}'", {}).argv
    assert argv.count("--hf-overrides") == 1
    with pytest.raises(UsageError, match=r"40960 positions.*--context 100000"):
        plan_of("Qwen/Qwen3-8B", "rtx-4090", max_model_len=100_000)


def test_harmless_flags_stay(parser) -> None:
    words = "--seed 7 -O3 --mm-processor-cache-gb 0 --performance-mode balanced --attention-backend TRITON_ATTN"
    assert "--attention-backend" in command(spec_of(PLAN), parser, words, {}).argv
    assert with_counted_flags(PlanRequest(engine="vllm"), words) == PlanRequest(engine="vllm")
