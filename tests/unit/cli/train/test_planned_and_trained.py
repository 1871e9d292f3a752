"""What `qserve plan train` plans is what the command that it prints trains."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner

from qserve.cli.main import cli
from qserve.cli.options.training import training_request
from qserve.cli.plan.train import command as plan_command
from qserve.cli.train.command import command as train_command
from qserve.cli.train.machine import completed, devices_of, with_engine
from qserve.planner.training import TrainingJob, TrainingRequest
from qserve.planner.training.training_defaults import default_precision
from qserve.service.machine import hardware_of
from tests.golden.plans.answers import machine

METHODS = ("sft", "lora", "qlora", "reward", "dpo", "ppo", "grpo")
LAYOUTS = (
    "--gpu h100",
    "--gpu h100:4 --zero 2",
    "--gpu h100:4 --zero 3 --micro-batch 2",
    "--gpu h100 --precision pure",
    "--gpu none",
    "--gpu h100:2 --lora-rank 16 --max-length 512 --no-gradient-checkpointing",
)
OF_A_METHOD = (
    "reward --gpu h100 --freeze-base",
    "grpo --gpu h100:4 --vllm separate --vllm-gpus 2",
    "grpo --gpu h100:2 --vllm colocated --lora-rank 8",
    "sft --gpu h100:4 --fsdp",
    "qlora --gpu h100 --precision mixed",
    "sft --gpu h100:2 --zero 3 --offload-optimizer cpu --offload-param cpu --precision mixed",
)


@pytest.fixture(autouse=True)
def everything_is_installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """DeepSpeed, bitsandbytes and vLLM, which decide what `qserve train` does where nothing is said."""
    monkeypatch.setattr("qserve.cli.train.machine.importlib.util.find_spec", lambda name: object())
    with machine():
        yield


def planned(monkeypatch: pytest.MonkeyPatch, line: str) -> tuple[TrainingJob, dict[str, Any]]:
    """What was planned, and the JSON of it."""
    jobs: list[TrainingJob] = []

    def kept(*given: Any, **named: Any) -> TrainingJob:
        jobs.append(TrainingJob(*given, **named))
        return jobs[-1]

    monkeypatch.setattr("qserve.cli.plan.train.TrainingJob", kept)
    done = CliRunner().invoke(plan_command, [*shlex.split(line), "--model", "Qwen/Qwen3-0.6B", "--json"])
    assert done.exit_code == 0, done.output
    return jobs[0], json.loads(done.stdout)


def trained(command: str, gpu: str) -> TrainingRequest:
    """What `qserve train` would train with this command on a machine with these cards."""
    words = shlex.split(command)
    assert words[:2] == ["qserve", "train"]
    values = train_command.make_context("train", words[2:], parent=None).params
    hardware = hardware_of(gpu)
    values["precision"] = values["precision"] or default_precision(values["zero_stage"], on_cpu=not hardware.devices)
    request = training_request(values, len(devices_of(hardware, values["gpus"])))
    request = completed(request, hardware, emit=values["emit"])
    return with_engine(request, values["vllm"], hardware)


@pytest.mark.parametrize("line", [*(f"{method} {rest}" for method in METHODS for rest in LAYOUTS), *OF_A_METHOD])
def test_the_printed_command_trains_what_was_planned(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    job, document = planned(monkeypatch, f"--method {line}")
    assert trained(document["next_command"], str(job.gpu)) == job.request


@pytest.mark.parametrize("flags", ["--fused-loss", "--no-tiled-loss", "--precision mixed"])
def test_what_no_run_does_is_planned_without_a_command(flags: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _, document = planned(monkeypatch, f"--method sft --gpu h100 {flags}")
    assert document["fits"] and "next_command" not in document and "machine" not in document
    assert f"{flags} " in document["notes"][-1] and "another trainer's run" in document["notes"][-1]


def test_cards_that_are_not_here_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    _, document = planned(monkeypatch, "--method lora --gpu h100:2")
    assert document["machine"] == "2 × NVIDIA H100 80GB HBM3"
    _, document = planned(monkeypatch, "--method lora --gpu none")
    assert "machine" not in document
    words = "plan train --method lora Qwen/Qwen3-0.6B --gpu"
    shown = CliRunner().invoke(cli, [*words.split(), "h100:2"]).stdout
    assert "Train it on a machine with 2 × NVIDIA H100 80GB HBM3:\n  qserve train lora" in shown
    assert "Train it:\n  qserve train lora" in CliRunner().invoke(cli, [*words.split(), "none"]).stdout


@pytest.mark.parametrize("asked", ["Qwen/Qwen3-8B --gpu rtx-4090:4", "Qwen/Qwen3-32B --gpu none"])
def test_suggestions_keep_the_rows_and_the_default_precision(asked: str) -> None:
    line = f"plan train --method sft {asked} --rows 500"
    shown = CliRunner().invoke(cli, line.split()).stdout
    commands = [words for words in shown.splitlines() if "qserve plan train" in words]
    assert commands and all(words.endswith("--rows 500") for words in commands)
    assert ("none" in asked or "--zero" in shown) and "--precision" not in shown
    for words in commands:
        again = CliRunner().invoke(cli, shlex.split(words)[1:])
        assert again.exit_code == 0, words
        assert "for 500 rows" in again.stdout
