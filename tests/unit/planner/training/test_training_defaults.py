"""What a run takes where nothing is said, by method and size."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from qserve.cli.options.training import training_request
from qserve.cli.plan.train import command
from qserve.core.quantization.stored import CheckpointQuantization
from qserve.core.schemes import SCHEMES
from qserve.hub import resolve
from qserve.planner.training import TrainingRequest, VllmBeside
from qserve.planner.training.command import command_line, train_command, why_no_run
from qserve.planner.training.training_defaults import (
    default_epochs,
    default_evaluation,
    default_kbit_fp32,
    default_learning_rate,
    default_tiled_loss,
    with_accumulation,
)
from qserve.planner.training.trl_releases import OUR_TRL, TRL_RELEASE


@pytest.mark.parametrize(
    ("fields", "hidden_size", "rate"),
    [
        ({"method": "sft"}, 4096, 2e-5),
        ({"method": "lora"}, 4096, 2e-4),
        ({"method": "reward"}, 2048, 4e-5),
        ({"method": "reward", "lora_rank": 8}, 4096, 2e-4),
        ({"method": "reward", "freeze_base": True}, 192, 4.3e-3),
        ({"method": "dpo"}, 4096, 1e-6),
        ({"method": "grpo", "lora_rank": 8}, 4096, 1e-5),
    ],
)
def test_smaller_models_and_adapters_learn_faster(fields: dict, hidden_size: int, rate: float) -> None:
    assert default_learning_rate(TrainingRequest(**fields), hidden_size) == rate


@pytest.mark.parametrize(
    ("fields", "devices", "steps"),
    [
        ({"method": "sft"}, 1, 8),
        ({"method": "sft", "micro_batch": 3}, 1, 3),
        ({"method": "reward", "micro_batch": 2}, 4, 1),
        ({"method": "dpo"}, 16, 1),
        ({"method": "grpo"}, 1, 32),
        ({"method": "grpo", "micro_batch": 3}, 1, 16),  # 48 rollouts: groups of 8
        ({"method": "grpo", "vllm": VllmBeside("separate")}, 2, 32),
    ],
)
def test_a_step_has_enough_rows_and_whole_groups(fields: dict, devices: int, steps: int) -> None:
    assert with_accumulation(TrainingRequest(**fields), devices).gradient_accumulation_steps == steps


@pytest.mark.parametrize(("rows", "epochs"), [(1, 3), (194, 3), (401, 2), (800, 1), (10**6, 1)])
def test_little_data_is_gone_through_more_than_once(rows: int, epochs: float) -> None:
    assert default_epochs(rows, 8) == epochs


def test_a_printed_command_means_the_same_request() -> None:
    """Accumulation is printed where it is not what the command takes by itself, a single step included."""
    usual = with_accumulation(TrainingRequest("sft"), 2)
    assert "--gradient-accumulation-steps" not in command_line("m", None, usual, num_devices=2)
    one = TrainingRequest("sft", gradient_accumulation_steps=1)
    assert "--gradient-accumulation-steps 1" in command_line("m", None, one, num_devices=2)
    assert training_request({"method": "sft", "gradient_accumulation_steps": 1}, 2) == one


@pytest.mark.parametrize(
    ("request_", "command"),
    [
        (
            TrainingRequest("lora", gradient_accumulation_steps=8, precision="amp"),
            "qserve train lora --model m --data FILE",
        ),
        (
            TrainingRequest("reward", zero_stage=3, gradient_accumulation_steps=8),
            "qserve train reward --model m --zero 3 --data FILE",
        ),
        (
            TrainingRequest("grpo", gradient_accumulation_steps=32, precision="amp", tiled_loss=True),
            "qserve train grpo --model m --vllm none --data FILE --reward REWARD",
        ),
        (
            TrainingRequest("ppo", gradient_accumulation_steps=8, precision="amp"),
            "qserve train ppo --model m --data FILE --reward REWARD --emit openrlhf",
        ),
    ],
)
def test_the_command_that_trains_what_was_planned(request_: TrainingRequest, command: str) -> None:
    assert train_command("m", request_, 1) == command


@pytest.mark.parametrize(
    ("method", "base", "release", "left"),
    [
        ("qlora", "4bit", (1, 16), "none"),
        ("qlora", "4bit", (0, 26), "none"),
        ("qlora", "4bit", (0, 25, 1), "norms"),
        ("lora", "4bit", (0, 13), "norms"),
        ("sft", "4bit", (0, 7, 4), "all"),
        ("sft", "4bit", (0, 7, 1), "none"),
        ("lora", "int8", (0, 24), "all"),
        ("lora", "int8", (0, 25), "norms"),
        ("dpo", "int8", (0, 28), "all"),
        ("dpo", "4bit", (0, 28), "norms"),
        ("dpo", "4bit", (0, 29), "none"),
        ("reward", "4bit", (0, 21), "all"),
        ("reward", "4bit", (0, 22), "norms"),
        ("grpo", "4bit", (0, 21), "none"),
        ("grpo", "4bit", (0, 24), "norms"),
        ("ppo", "4bit", (0, 13), "none"),
        ("lora", "bf16", (0, 13), "none"),
        ("lora", None, (0, 13), "none"),
    ],
)
def test_what_a_release_of_trl_leaves_in_fp32(method: str, base: str | None, release: tuple, left: str) -> None:
    assert default_kbit_fp32(method, base, release) == left


def test_what_qserve_train_runs_is_what_it_may_be_installed_with() -> None:
    """One release of pyproject.toml's pin, and what the help and the notes say of it."""
    pyproject = tomllib.loads((Path(__file__).parents[4] / "pyproject.toml").read_text())
    train = pyproject["project"]["optional-dependencies"]["train"]
    (pin,) = (Requirement(text).specifier for text in train if Requirement(text).name == "trl")
    major, minor = TRL_RELEASE
    assert pin == SpecifierSet(f">={major}.{minor},<{major}.{minor + 1}")
    said = " ".join(CliRunner().invoke(command, ["--help-all"]).output.split())
    assert f"whose own loss and --kbit-fp32 are planned [{major}.{minor}]" in said
    assert f"deprecated in {OUR_TRL}, which" in said
    assert (why_no_run(TrainingRequest("sft"), "0.24", on_cpu=False) or "").startswith(f"`qserve train` runs {OUR_TRL}")


def test_since_when_trl_never_holds_all_logits() -> None:
    assert [default_tiled_loss("sft", release) for release in ((1, 6), (1, 7), (1, 16))] == [False, True, True]
    assert [default_tiled_loss("dpo", release) for release in ((1, 7), (1, 15, 2), (1, 16))] == [False, False, True]
    assert not default_tiled_loss("reward", (2, 0))


@pytest.mark.parametrize(
    ("method", "release", "holds"),
    [
        ("sft", (0, 28), True),
        ("lora", (0, 24, 0), True),
        ("qlora", (0, 28, 5), True),
        ("sft", (0, 29), False),
        ("sft", (1, 16), False),
        ("dpo", (0, 24), False),
        ("grpo", (0, 24), False),
        ("reward", (0, 24), False),
        ("ppo", (0, 24), False),
    ],
)
def test_until_when_an_evaluation_of_trl_holds_all_logits(method: str, release: tuple, holds: bool) -> None:
    assert default_evaluation(method, release) is holds


def test_a_plan_with_evaluation_is_trained_by_the_same_command() -> None:
    request = TrainingRequest("sft", precision="amp", tiled_loss=True, gradient_accumulation_steps=8)
    scored = replace(request, evaluation=True)
    assert train_command("m", scored, 1) == train_command("m", request, 1)
    assert "--evaluation" in command_line("m", None, replace(scored, fused_loss=True))
    assert "evaluation" not in command_line("m", None, replace(request, fused_loss=True))


@pytest.mark.parametrize(
    ("stored", "flags", "left"),
    [
        ("bnb-nf4", "--method lora --trl 0.24", "norms"),
        ("bnb-nf4-single", "--method qlora --trl 0.24", "norms"),
        ("bnb-fp4", "--method sft --lora-rank 8 --trl 0.7.4", "all"),
        ("bnb-int8", "--method lora --trl 0.24", "all"),
        ("bnb-int8", "--method reward --lora-rank 8 --trl 0.25", "norms"),
        ("bnb-nf4", "--method lora", "none"),
        ("bnb-nf4", "--method lora --trl 0.24 --zero 2", "none"),
        ("bnb-nf4", "--method lora --trl 0.24 --kbit-fp32 none", "none"),
        ("gptq-int4", "--method qlora --trl 0.24", "none"),
        ("gptq-int8", "--method lora --trl 0.24", "none"),
        ("awq", "--method dpo --load-in-4bit --trl 0.24", "none"),
        (None, "--method lora --quant int8 --trl 0.24", "all"),
        (None, "--method dpo --load-in-4bit --trl 0.28", "norms"),
        (None, "--method reward --freeze-base --trl 0.24", "none"),
        (None, "--method sft --trl 0.24", "none"),
    ],
)
def test_the_stored_base_decides_what_a_release_leaves_in_fp32(
    monkeypatch: pytest.MonkeyPatch, stored: str | None, flags: str, left: str
) -> None:
    """Of a packing that is not bitsandbytes' no release of TRL prepares anything, whatever the method is called."""
    found = resolve("Qwen/Qwen3-8B")
    packed = CheckpointQuantization(stored, SCHEMES[stored].bits, 128) if stored else None
    found = replace(found, spec=replace(found.spec, quantization=packed))
    monkeypatch.setattr("qserve.cli.plan.train.resolve", lambda model: found)
    line = f"Qwen/Qwen3-8B --gpu b200 --json {flags}"
    done = CliRunner().invoke(command, line.split(), catch_exceptions=False)
    assert json.loads(done.stdout)["training"]["kbit_fp32"] == left, done.output


def test_what_is_read_of_a_reward_model_is_said_too() -> None:
    """That its figures come from dimensions, and what an alias was taken for."""
    line = "Qwen/Qwen3-4B --method ppo --gpu b200:2 --json --reward-model qwen3-0.6b"
    notes = json.loads(CliRunner().invoke(command, line.split(), catch_exceptions=False).stdout)["notes"]
    for name in ("Qwen/Qwen3-4B", "qwen3-0.6b"):
        for message in resolve(name).messages:
            assert message in notes
    assert any("qwen3-0.6b" in note for note in notes)
