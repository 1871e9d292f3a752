"""From a plan to the command line: every decision is a flag, and the key is in none."""

from __future__ import annotations

import platform
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from qserve.engines.vllm.launch import tiles
from qserve.engines.vllm.launch.command import command, ready_timeout_s
from qserve.engines.vllm.launch.plugins import adapter_versions
from qserve.engines.vllm.launch.server import VllmLaunch
from qserve.errors import UsageError
from tests.unit.engines.vllm.builders import DEMO, RELEASES, pairs, parser_for, plan_of, spec_of

SERVER_PROCESS = "qserve.engines.vllm.launch.plugins.server_process"
LIMITS = {"max_model_len": 1024, "max_num_seqs": 8, "max_num_batched_tokens": 512, "kv_cache_memory_bytes": 70_000_000}


def demo_command(parser, extra="", environ=None, **fixed):
    plan = plan_of(quant="bf16", **{**LIMITS, **fixed})
    return command(spec_of(plan), parser, extra, environ if environ is not None else {"PATH": "/bin"}, "python")


@pytest.mark.parametrize(
    ("release", "module"),
    [
        ("0.28.0", "vllm.entrypoints.openai.api_server"),
        ("0.29.0", "vllm.entrypoints.launchers.api_server.entry"),
        ("0.33.0", "vllm.entrypoints.launchers.api_server.entry"),
    ],
)
def test_the_server_is_vllms_own_and_no_deprecated_one(release, module):
    assert demo_command(parser_for(release)).argv[:4] == ("python", "-m", SERVER_PROCESS, module)


def test_every_decision_is_a_flag(parser):
    flags = pairs(demo_command(parser, enforce_eager=True, enable_prefix_caching=False).argv)
    assert flags["--model"] == str(DEMO)
    assert flags["--served-model-name"] == "demo"
    assert flags["--uds"] == "/run/user/q/chat.sock"
    assert flags["--dtype"] == "bfloat16"
    assert flags["--max-model-len"] == "1024"
    assert flags["--max-num-seqs"] == "8"
    assert flags["--max-num-batched-tokens"] == "512"
    assert flags["--kv-cache-memory-bytes"] == "70000000"
    assert {"--enforce-eager", "--no-enable-prefix-caching", "--enable-chunked-prefill"} <= set(flags)
    assert "--gpu-memory-utilization" not in flags  # there is no card


def test_a_prompt_that_fits_into_a_step_needs_no_chunks(parser):
    assert "--enable-chunked-prefill" not in demo_command(parser, max_num_batched_tokens=1024).argv


def test_all_names_are_served(parser):
    spec = spec_of(plan_of(quant="bf16", **LIMITS), models=("demo", "my/name"))
    argv = command(spec, parser, environ={}).argv
    place = argv.index("--served-model-name")
    assert argv[place + 1 : place + 3] == ("demo", "my/name")


@pytest.mark.parametrize("release", RELEASES)
def test_each_accepted_release_knows_every_flag(release):
    """Flags of real releases, read from their own parsers."""
    parser = parser_for(release)
    demo_command(parser, enforce_eager=True, enable_prefix_caching=True)
    fixed = {"num_speculative_tokens": 2, "kv_cache_dtype": "fp8", "mamba_ssm_cache_dtype": "bfloat16"}
    plan = plan_of("Qwen/Qwen3.6-27B", "h100-sxm:2", tensor_parallel_size=2, language_model_only=True, **fixed)
    argv = command(spec_of(plan), parser, environ={}).argv
    assert "--tensor-parallel-size" in argv
    assert "--speculative-config" in argv


def test_random_weights_of_a_large_model_on_a_card_with_the_oldest_release():
    """What a machine with torch 2.11 can run: its vLLM, and no weights."""
    plan = plan_of("Qwen/Qwen3-32B", "h100-sxm", quant="bf16", engine_version=RELEASES[0])
    assert plan.fits
    spec = replace(spec_of(plan), load_format="dummy")
    launch = VllmLaunch(spec, "", parser_for(RELEASES[0]))
    flags = pairs(launch.command)
    assert flags["--load-format"] == "dummy"
    assert (flags["--dtype"], flags["--max-model-len"]) == ("bfloat16", "40960")
    assert flags["--kv-cache-memory-bytes"] == str(plan.placement.kv_cache_memory_bytes)
    assert {"--quantization", "--worker-extension-cls", "--tool-strict-level"} & set(flags) == set()


@pytest.mark.parametrize("release", RELEASES)
def test_quantization_in_flight_has_a_name_that_the_release_takes(release):
    plan = plan_of("Qwen/Qwen2.5-7B", "h100-sxm", quant="fp8", engine_version=release)
    assert plan.quant.in_flight
    names = ("fp8",) if release < "0.28" else ("fp8_per_tensor", "fp8_per_block")
    assert pairs(plan.engine_args)["--quantization"] in names
    plan = plan_of(quant="4bit")
    assert pairs(plan.engine_args)["--quantization"] == "bitsandbytes"


def test_a_card_gets_both_bytes_and_share(parser):
    plan = plan_of("Qwen/Qwen3-8B", "rtx-4090", quant="bf16")
    flags = pairs(command(spec_of(plan), parser, environ={}).argv)
    assert flags["--kv-cache-memory-bytes"] == str(plan.placement.kv_cache_memory_bytes)
    assert float(flags["--gpu-memory-utilization"]) == plan.placement.gpu_memory_utilization


def test_vllm_measures_its_activations_where_it_is_asked_to(parser):
    """It does so only where it sizes the cache itself, by the share of the card that the plan gave it."""
    plan = plan_of("Qwen/Qwen3-8B", "h100-80gb", quant="bf16")
    asked = {"QSERVE_VLLM_PROFILES_MEMORY": "1"}
    words = command(spec_of(plan), parser, environ=asked).argv
    usual = command(spec_of(plan), parser, environ={}).argv
    assert "--kv-cache-memory-bytes" in usual and "--kv-cache-memory-bytes" not in words
    place = usual.index("--kv-cache-memory-bytes")
    assert words == (*usual[:place], *usual[place + 2 :])
    on_cpu = plan_of(quant="bf16", **LIMITS)
    assert command(spec_of(on_cpu), parser, environ=asked).argv == command(spec_of(on_cpu), parser, environ={}).argv


def test_the_key_is_in_the_environment_and_nowhere_else(parser):
    started = demo_command(parser)
    assert "internal-key" not in " ".join(started.argv)
    assert started.env["VLLM_API_KEY"] == "internal-key"
    assert "internal-key" not in repr(started)


def test_the_environment_is_the_users_with_what_qserve_needs(parser):
    env = demo_command(parser, environ={"PATH": "/bin", "VLLM_LOGGING_LEVEL": "error", "VLLM_API_KEY": "theirs"}).env
    assert env["PATH"] == "/bin"
    assert env["HF_HUB_OFFLINE"] == "1"
    assert env["VLLM_NO_USAGE_STATS"] == "1"
    assert Path(env["TORCHINDUCTOR_CACHE_DIR"]).name == "torchinductor", "kept from boot to boot"
    assert next(iter(env)) != "TORCHINDUCTOR_CACHE_DIR", "setproctitle needs the first variable where it was"
    assert env["VLLM_LOGGING_LEVEL"] == "INFO"
    assert env["VLLM_API_KEY"] == "internal-key"
    assert demo_command(parser, environ={"VLLM_LOGGING_LEVEL": "debug"}).env["VLLM_LOGGING_LEVEL"] == "DEBUG"


def test_an_environment_that_overrules_the_plan_is_refused(parser):
    with pytest.raises(UsageError, match=r"VLLM_CPU_KVCACHE_SPACE=4 .* 70000000 bytes; unset it .*--kv-cache-memory"):
        demo_command(parser, environ={"VLLM_CPU_KVCACHE_SPACE": "4"})
    assert "VLLM_CPU_KVCACHE_SPACE" not in demo_command(parser, environ={"VLLM_CPU_KVCACHE_SPACE": ""}).env


def test_kernels_that_no_plan_counts_are_refused(parser):
    with pytest.raises(UsageError, match=r"VLLM_BATCH_INVARIANT=1 .* than the plan counts; unset it"):
        demo_command(parser, environ={"VLLM_BATCH_INVARIANT": "1"})
    assert demo_command(parser, environ={"VLLM_BATCH_INVARIANT": "0"}).env["VLLM_BATCH_INVARIANT"] == "0"


def test_a_cache_that_vllm_measured_does_not_take_the_place_of_the_plans(parser):
    assert "VLLM_ENABLE_STARTUP_PLAN" not in demo_command(parser, environ={"VLLM_ENABLE_STARTUP_PLAN": "1"}).env


def test_tool_calls_are_parsed_as_the_template_writes_them(parser):
    flags = pairs(demo_command(parser).argv)
    assert flags["--tool-call-parser"] == "hermes"
    assert "--enable-auto-tool-choice" in flags
    assert flags["--reasoning-parser"] == "qserve_tagged"  # the demo thinks where it likes


def test_arguments_of_tools_follow_their_schema_where_the_release_can_bind_them(parser):
    assert pairs(demo_command(parser).argv)["--tool-strict-level"] == "parameter"
    older = replace(parser, flags={name: flag for name, flag in parser.flags.items() if name != "--tool-strict-level"})
    assert "--tool-strict-level" not in demo_command(older).argv


@pytest.mark.parametrize("release", RELEASES)
def test_usage_tells_what_was_cached_in_every_release(release):
    assert "--enable-prompt-tokens-details" in demo_command(parser_for(release)).argv


def test_workers_on_a_cpu_ask_for_tiles_and_others_do_not(parser):
    """vLLM's attention uses AMX without asking Linux for it, which ends a worker of a small model (`tiles`)."""
    on_card = command(spec_of(plan_of("Qwen/Qwen3-8B", "rtx-4090", quant="bf16")), parser, environ={}).argv
    assert "--worker-extension-cls" not in on_card
    module, _, name = pairs(demo_command(parser).argv)["--worker-extension-cls"].rpartition(".")
    assert (module, name) == (tiles.__name__, tiles.WithTiles.__name__)
    own = demo_command(parser, "--worker-extension-cls mine.Extension").argv
    assert own.count("--worker-extension-cls") == 1 and pairs(own)["--worker-extension-cls"] == "mine.Extension"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="tiles are an extension of x86-64")
def test_a_process_that_imports_the_extension_may_use_tiles_where_there_are_any():
    """Bit 18 of what Linux says: ARCH_GET_XCOMP_SUPP tells what there is, ARCH_GET_XCOMP_PERM what is allowed."""
    code = (
        "import ctypes; import qserve.engines.vllm.launch.tiles\n"
        "def bit(code):\n"
        "    bits = ctypes.c_ulong()\n"
        "    return not ctypes.CDLL(None).syscall(158, code, ctypes.byref(bits)) and bits.value >> 18 & 1\n"
        "print(bool(bit(0x1021)), bool(bit(0x1022)))"
    )
    there, allowed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.split()
    assert allowed == there


def test_a_large_checkpoint_has_time_to_come_from_a_slow_disk(parser, tmp_path):
    assert ready_timeout_s(0) == ready_timeout_s(50_000_000) - 1 == 600
    assert ready_timeout_s(65_000_000_000) == 1900
    assert command(spec_of(plan_of(quant="bf16")), parser, "", {}).env["VLLM_ENGINE_READY_TIMEOUT_S"] == "600"
    own = {"VLLM_ENGINE_READY_TIMEOUT_S": "7200"}
    assert command(spec_of(plan_of(quant="bf16")), parser, "", own).env["VLLM_ENGINE_READY_TIMEOUT_S"] == "7200"


def test_adapters_may_be_loaded_later_where_one_server_has_room(parser):
    def room(extra, **fixed):
        made = demo_command(parser, extra, **fixed)
        return made.adapters.max_loras, made.adapters.max_rank, pairs(made.argv).get("--max-cpu-loras"), made.env

    *found, env = room("", enable_lora=True, max_loras=4, max_lora_rank=32)
    assert found == [4, 32, "8"] and env[adapter_versions.VARIABLE] == "1"
    *found, env = room("--max-cpu-loras 5", enable_lora=True)
    assert found == [1, 16, "5"] and env[adapter_versions.VARIABLE] == "1"
    *found, env = room("")
    assert found == [0, 0, None] and adapter_versions.VARIABLE not in env
