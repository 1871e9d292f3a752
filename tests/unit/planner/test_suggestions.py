"""Suggestions for a refusal: what is offered, that it is the nearest, and that its command gives a plan that fits."""

from __future__ import annotations

import json
import re
import shlex
from functools import lru_cache

import pytest
from click.testing import CliRunner

from qserve.cli.plan.command import command
from qserve.core.hardware import Hardware
from qserve.engines.vllm.plan.layouts import layouts
from qserve.errors import UsageError
from qserve.planner import PlanRequest
from qserve.planner.plan import USABLE_TPOT_MS, Suggestion
from qserve.units import GIB
from tests.unit.planner.test_make_plan import plan_of
from tests.unit.planner.test_weights import spec_of


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    """RAM that nobody else takes or gives back between a refusal and its suggestions."""
    here = Hardware((), 64 * GIB, 40 * GIB, 16, disk_free_bytes=500 * GIB)
    monkeypatch.setattr("qserve.detect.detect", lambda **_: here)


@lru_cache(maxsize=32)
def ways_out(line):
    """What is offered for a line that is refused."""
    asked = CliRunner().invoke(command, [*shlex.split(line), "--json"])
    assert asked.exit_code == 3, asked.output
    return json.loads(asked.stdout)["suggestions"]


def suggestions(line):
    """Changes and their commands."""
    return {way["change"]: way["command"] for way in ways_out(line)}


def planned(line):
    words = shlex.split(line)
    assert words[:2] == ["qserve", "plan"]
    done = CliRunner().invoke(command, [*words[2:], "--json"])
    assert done.exit_code == 0, line
    return json.loads(done.stdout)


REFUSED = [
    "--model Qwen/Qwen3-32B --quant 4bit --gpu rtx-3060",
    "--model deepseek-ai/DeepSeek-R1-Distill-Qwen-14B --gpu rtx-4090 --max-model-len 131072",
    "--model Qwen/Qwen3-8B --gpu rtx-4090 --quant bf16 --kv-cache-memory-bytes 20GiB",
    "--model Qwen/Qwen3.8-27B --gpu rtx-4090 --quant 4bit --max-num-seqs 512",
    "--model Qwen/Qwen3-4B --gpu rtx-4060 --prompt-logprobs --max-num-batched-tokens 8192",
    "--model Qwen/Qwen3-8B --gpu rtx-4090 --quant bf16 --enable-lora --max-loras 16 --max-lora-rank 64",
    "--model Qwen/Qwen2.5-VL-7B-Instruct --gpu rtx-4090 --max-model-len 128000",
    "--model Qwen/Qwen3-32B --gpu none --quant bf16 --engine vllm",
    "--model Qwen/Qwen3-32B --gpu rtx-4090 --engine transformers --quant bf16",
]


@pytest.mark.parametrize("line", REFUSED)
def test_every_command_that_is_offered_fits_and_is_as_fast_as_was_said(line):
    offered = ways_out(line)
    assert offered
    for way in offered:
        plan = planned(way["command"])
        assert plan["fits"], way
        assert way["output_tokens_per_s"] == plan["speed"]["output_tokens_per_s"]["value"], way
        assert way["tpot_ms"] == plan["speed"]["tpot_ms"]["mean"], way
        assert f"{plan['workload']['max_model_len']:,} tokens" in way["cost"], way


@pytest.mark.parametrize("line", REFUSED)
def test_smaller_models_come_first_and_layers_beside_the_card_last(line):
    """Before smaller models only what the user fixed himself, and which costs nothing."""
    offered = [way for way in ways_out(line) if way["cost"].partition(";")[0] != "costs nothing"]
    asked = line.split()[1]
    smaller = ["a smaller model" in way["cost"] for way in offered]
    assert smaller == sorted(smaller, reverse=True)
    assert any(smaller) or line == REFUSED[6]  # a video of that length does not fit beside the smaller one either
    assert all(f"--model {asked}" not in way["command"] for way in offered if "a smaller model" in way["cost"])
    offloads = ["--offload" in way["command"] for way in offered]
    assert offloads == sorted(offloads)


def test_of_smaller_models_the_largest_that_is_fast_enough_is_offered_first():
    first, second, *_ = ways_out("--model Qwen/Qwen3-32B --gpu none --quant bf16")
    assert first["tpot_ms"] <= USABLE_TPOT_MS < second["tpot_ms"]
    assert planned(second["command"])["model"]["parameters"] > planned(first["command"])["model"]["parameters"]


def test_what_is_too_slow_says_so_in_seconds_a_token():
    *_, offload = ways_out("--model Qwen/Qwen3-32B --gpu rtx-4090 --quant bf16")
    told = Suggestion(**offload)
    assert "--offload" in told.command and not told.is_usable
    assert re.fullmatch(r"[\d.]+ s a token, too slow to chat", told.speed)


def test_the_longest_length_that_fits_is_offered_not_half_of_what_was_asked():
    offered = suggestions(REFUSED[1])
    (length,) = (int(change.split()[1]) for change in offered if change.startswith("max_model_len"))
    assert 55_000 < length < 65_536
    assert ("--max-model-len", str(length)) in zip(
        shlex.split(offered[f"max_model_len {length}"]),
        shlex.split(offered[f"max_model_len {length}"])[1:],
        strict=False,
    )


@pytest.mark.parametrize(
    ("line", "change"),
    [
        (REFUSED[2], "let the planner choose the KV cache"),
        (REFUSED[3], "max_num_seqs 16"),
        (REFUSED[4], "max_num_batched_tokens 4096"),
        (REFUSED[4], "no room for prompt log-probabilities"),
        (REFUSED[5], "8 adapters at once"),
        (REFUSED[6], "no videos"),
        (REFUSED[7], "one NVIDIA A100-SXM4-80GB"),
    ],
)
def test_the_flag_that_is_too_much_is_the_one_that_is_changed(line, change):
    assert change in suggestions(line)


def test_adapters_are_not_dropped_in_silence():
    """The transformers engine has none, so that offloading is no way out."""
    assert not any("layers in RAM" in change for change in suggestions(REFUSED[5]))


def test_commands_keep_the_cpu_and_leave_out_what_nobody_chose():
    offered = suggestions("--model Qwen/Qwen3-32B --gpu none --quant bf16")
    assert all("--engine-version" not in way for way in offered.values())
    assert all("--gpu" in way for way in offered.values())


def test_ranks_come_before_stages():
    """Of four cards, four ranks before three stages, where three ranks can't divide the model."""
    pairs = list(layouts(spec_of("Qwen/Qwen3-Next-80B-A3B-Instruct"), 4, PlanRequest()))
    assert pairs[:3] == [(1, 1), (2, 1), (4, 1)] and (1, 3) in pairs


def test_a_size_that_does_not_divide_is_told_with_those_that_do():
    done = CliRunner().invoke(
        command, ["--model", "Qwen/Qwen2.5-0.5B-Instruct", "--gpu", "rtx-4090:4", "--tensor-parallel-size", "4"]
    )
    assert "divides over 1, 2" in str(done.exception)


def test_fp8_by_name_on_a_card_before_ampere():
    """`auto` leaves it out there, as nothing is gained in time; who asks for it gets it."""
    plan = plan_of("Qwen/Qwen2.5-7B-Instruct", "t4", quant="fp8")
    assert plan.fits and plan.quant.scheme.startswith("fp8")
    assert "no fp8 arithmetic" in plan.quant.reason
    assert not plan_of("Qwen/Qwen2.5-7B-Instruct", "t4").quant.scheme.startswith("fp8")


def test_a_stored_checkpoint_is_not_the_only_one_of_its_model():
    offered = suggestions("--model Qwen/Qwen3-32B-FP8 --gpu rtx-4090")
    assert "--model Qwen/Qwen3-32B --gpu rtx-4090 --quant 4bit" in offered["weights in 4 bit"]
    assert planned(offered["weights in 4 bit"])["quant"]["checkpoint"] == "Qwen/Qwen3-32B-AWQ"


def test_a_described_card_stays_as_described():
    """Its compute capability and what others hold of it decide, and are not in a table."""
    offered = suggestions("--model Qwen/Qwen3-8B --quant bf16 --gpu memory=24GiB,sm=40,cc=7.5,used=8GiB")
    words = shlex.split(offered["weights in fp8"])
    gpu = words[words.index("--gpu") + 1]
    assert "cc=7.5" in gpu and f"used={8 * GIB}" in gpu
    plan = planned(offered["weights in fp8"])
    assert plan["devices"][0]["used_by_others_bytes"] == 8 * GIB and plan["dtype"] == "float16"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--gpu memory=24", "memory=24 is 24 bytes; write for example 24GiB"),
        ("--gpu rtx-4090 --engine transformers --engine-version 0.32.0", "transformers before 4.38 is not planned for"),
        ("--gpu rtx-4090 --engine-version 4.51.0", "4.51.0 is not a release of vLLM; give --engine transformers"),
        ("--gpu rtx-4090 --kv-cache-dtype I64", "--kv-cache-dtype 'I64' is unknown; it takes auto or one of bfloat16"),
        ("--gpu rtx-4090 --dtype int8", "--dtype 'int8' is unknown; it takes auto or one of bfloat16, float16"),
        ("--gpu rtx-4090 --mamba-ssm-cache-dtype fp8", "--mamba-ssm-cache-dtype 'fp8' is unknown"),
    ],
)
def test_what_no_engine_takes_is_refused(line, message):
    done = CliRunner().invoke(command, ["--model", "Qwen/Qwen3-8B", *shlex.split(line)])
    assert isinstance(done.exception, UsageError)
    assert message in str(done.exception)


def test_too_many_sequences_of_a_hybrid_are_what_is_short() -> None:
    """It said "1 B short": one sequence had its room, 512 have not a block each."""
    plan = plan_of("Qwen/Qwen3.8-27B", "rtx-4090", quant="4bit", max_num_seqs=512, language_model_only=True)
    assert not plan.fits
    assert "states of 512 sequences (max_num_seqs) 24.50 GiB" in (plan.why_not or "")
    assert plan.devices[0].kv_cache_bytes == int(24.5 * GIB)
