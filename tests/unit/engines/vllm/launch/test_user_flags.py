"""`--engine-args`: what is passed through, what is refused, and by which name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qserve.engines.vllm.launch.command import command
from qserve.engines.vllm.plan.flag_table import flag_table
from qserve.errors import UsageError
from tests.unit.engines.vllm.builders import RELEASES, pairs, parser_for, plan_of, spec_of

PLAN = plan_of(
    quant="bf16", max_model_len=1000, max_num_seqs=8, max_num_batched_tokens=512, kv_cache_memory_bytes=70_000_000
)


def with_extra(parser, extra):
    return command(spec_of(PLAN), parser, extra, {}).argv


def test_other_flags_pass_through(parser):
    extra = ("--seed", "7", "--lora-modules", "a=org/a", "b=org/b", "--hf-overrides.rope_scaling.factor=2")
    argv = with_extra(parser, " ".join(extra))
    assert argv[-6:] == extra


def test_adapters_that_the_plan_counts_are_named_once(parser):
    plan = plan_of(quant="bf16", enable_lora=True, max_loras=2, lora_target_modules="q_proj,v_proj")
    words = "--enable-lora --max-loras 2 --lora-target-modules q_proj v_proj"
    argv = command(spec_of(plan), parser, words, {}).argv
    assert [argv.count(flag) for flag in ("--enable-lora", "--max-loras", "--lora-target-modules")] == [1, 1, 1]


def test_an_adapter_that_is_not_there_is_refused_before_the_start(parser, tmp_path):
    (tmp_path / "adapter_config.json").touch()
    assert f"a={tmp_path}" in with_extra(parser, f"--lora-modules a={tmp_path}")
    for missing in ("a=/nowhere", '\'{"name": "a", "path": "/nowhere"}\''):
        with pytest.raises(UsageError, match=r"/nowhere has no adapter_config\.json"):
            with_extra(parser, f"--lora-modules {missing}")


def test_quotes_are_a_shells(parser):
    argv = with_extra(parser, """--chat-template '/my templates/a.jinja' --override-generation-config '{"top_k": 1}'""")
    assert "/my templates/a.jinja" in argv
    assert '{"top_k": 1}' in argv
    with pytest.raises(UsageError, match="quote it as a shell would"):
        with_extra(parser, "--chat-template 'x")


@pytest.mark.parametrize(
    ("extra", "plan_has", "qserve_flag"),
    [
        ("--max-model-len 2048", "--max-model-len 1000", "--max-model-len"),
        ("--max_model_len=2048", "--max-model-len 1000", "--max-model-len"),
        ("--dtype float16", "--dtype bfloat16", "--dtype"),
        ("-tp 2", "no --tensor-parallel-size", "--tensor-parallel-size"),
        ("--quantization fp8_per_tensor", "no --quantization", "--quant"),
        ("-q awq", "no --quantization", "--quant"),
        ("--enforce-eager", "no --enforce-eager", "--enforce-eager"),
        ("--no-enable-chunked-prefill", "--enable-chunked-prefill", "--max-num-batched-tokens"),
        ("--kv-cache-memory-bytes 1000", "--kv-cache-memory-bytes 70000000", "--kv-cache-memory-bytes"),
        ("--num-gpu-blocks-override 9", "no --num-gpu-blocks-override", "--kv-cache-memory-bytes"),
        ("--cpu-offload-gb 4", "no --cpu-offload-gb", "--engine transformers --offload cpu"),
        ("--enable-lora", "no --enable-lora", "--enable-lora"),
        ("--device-memory-utilization 0.5", "no --gpu-memory-utilization", "--gpu-memory-utilization"),
    ],
)
def test_what_contradicts_the_plan_is_refused_with_both_names(parser, extra, plan_has, qserve_flag):
    with pytest.raises(UsageError) as refused:
        with_extra(parser, extra)
    assert f"--engine-args {extra} contradicts the plan, which has {plan_has}; use qserve's {qserve_flag}" in str(
        refused.value
    )


@pytest.mark.parametrize(
    "extra",
    ["--max-model-len 1000", "--max-model-len=1k", "--max_num_seqs 8", "--no-enforce-eager", "--dtype bfloat16"],
)
def test_what_says_the_same_as_the_plan_is_no_contradiction(parser, extra):
    argv = with_extra(parser, extra)
    assert argv.count("--max-model-len") == argv.count("--max-num-seqs") == argv.count("--dtype") == 1


@pytest.mark.parametrize(
    "extra",
    [
        "--uds /tmp/x",
        "--api-key k",
        "--host 0.0.0.0",
        "--port 9",
        "--served-model-name x",
        "--root-path /v",
        "--ssl-keyfile k",
        "--ssl-certfile c",
        "--model other",
        "--config f.yaml",
        "--data-parallel-size 2",
        "--api-server-count 2",
        "--headless",
        "--grpc",
        "--allowed-origins '[\"*\"]'",
        "--disable-log-stats",
        "--runner pooling",
        "--help",
    ],
)
def test_what_is_qserves_own_is_refused_by_name(parser, extra):
    with pytest.raises(UsageError, match=f"--engine-args {extra.split()[0]}"):
        with_extra(parser, extra)


def test_parsers_that_were_only_guessed_may_be_replaced(parser):
    flags = pairs(with_extra(parser, "--tool-call-parser qwen3_coder --reasoning-parser=qwen3 --max-logprobs 50"))
    assert flags["--tool-call-parser"] == "qwen3_coder"
    assert "--reasoning-parser=qwen3" in flags
    assert flags["--max-logprobs"] == "50"


def test_what_qserve_needs_can_not_be_undone(parser):
    with pytest.raises(UsageError, match="--no-disable-uvicorn-access-log contradicts --disable-uvicorn-access-log"):
        with_extra(parser, "--no-disable-uvicorn-access-log")


@pytest.mark.parametrize("release", RELEASES)
def test_every_setting_that_is_guarded_exists(release):
    """A renamed flag would slip past its guard."""
    known = {flag.dest for flag in parser_for(release).flags.values()}
    since = {"grpc_port": "0.32.0", "dp_sync_interval": "0.30.0", "log_level": "0.31.0", "logging_config": "0.31.0"}
    since["engram_config"] = "0.30.0"
    table = flag_table()
    expected = {name for name in {*table.planned, *table.owned} - {"model_tag"} if since.get(name, "0") <= release}
    assert expected <= known


@pytest.mark.parametrize(
    ("words", "config"),
    [
        ("", {"backend": "xgrammar", "disable_any_whitespace": True}),
        # Alone it stops vLLM's start: "only supported for xgrammar and guidance backends".
        (
            """--structured-outputs-config '{"disable_any_whitespace": true}'""",
            {"backend": "xgrammar", "disable_any_whitespace": True},
        ),
        (
            """--structured-outputs-config '{"backend": "guidance", "disable_any_whitespace": true}'""",
            {"backend": "guidance", "disable_any_whitespace": True},
        ),
        ("""--structured-outputs-config '{"backend": "outlines"}'""", {"backend": "outlines"}),
    ],
)
def test_json_of_a_schema_has_no_blanks_unless_asked(parser, words, config):
    flags = pairs(with_extra(parser, words))
    assert json.loads(flags["--structured-outputs-config"]) == {**config, "enable_in_reasoning": True}  # of the demo


@pytest.mark.parametrize("extra", ["", '--structured-outputs-config \'{"backend": "guidance"}\''])
def test_a_model_that_thinks_where_it_likes_writes_a_structure_at_once(parser, extra):
    """vLLM would bind it from its second token on, or not before a thought has ended."""
    flags = pairs(with_extra(parser, extra))
    assert Path(flags["--reasoning-parser-plugin"]).is_file()
    assert json.loads(flags["--structured-outputs-config"])["enable_in_reasoning"] is True
    other = pairs(with_extra(parser, "--structured-outputs-config.backend guidance"))
    assert other["--structured-outputs-config.enable_in_reasoning"] == "true"
    assert "enable_in_reasoning" not in " ".join(with_extra(parser, "--reasoning-parser qwen3"))


@pytest.mark.parametrize(
    ("words", "library"),
    [
        ("", "xgrammar"),
        ("""--structured-outputs-config '{"backend": "guidance"}'""", "guidance"),
        ("--structured-outputs-config.backend outlines", "outlines"),
        ("""--structured-outputs-config '{"backend": "auto"}'""", ""),
        ("""--structured-outputs-config '{"disable_any_whitespace": false}'""", ""),
    ],
)
def test_the_gateway_is_told_what_holds_answers_to_schemas(parser, words, library):
    assert command(spec_of(PLAN), parser, words, {}).schema_library == library


@pytest.mark.parametrize(
    ("words", "held"),
    [
        ("", True),
        ("--structured-outputs-config.disable_any_whitespace true --structured-outputs-config.backend xgrammar", True),
        ("""--structured-outputs-config '{"backend": "xgrammar"}'""", False),
    ],
)
def test_structural_tags_have_blanks_where_the_user_lets_json_have_them(parser, words, held):
    environment = command(spec_of(PLAN), parser, words, {}).env
    assert (environment.get("QSERVE_TAGS_WITHOUT_BLANKS") == "1") is held
