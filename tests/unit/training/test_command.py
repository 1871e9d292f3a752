"""`qserve train` before anything is loaded: what it refuses, what --auto takes, how an end is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import pytest
import yaml
from click.testing import CliRunner

from qserve.cli.train.command import command
from qserve.cli.train.fitting import fitting_request
from qserve.cli.train.flags import source_at
from qserve.cli.train.machine import devices_of
from qserve.cli.train.planned import _downloaded
from qserve.core.hardware import Device, Hardware
from qserve.errors import DoesNotFit, UsageError
from qserve.hub import resolve
from qserve.hub.growth import Arrived
from qserve.planner.training import TrainingJob, TrainingRequest
from qserve.training.outcome import outcome_of
from qserve.units import GIB, MIB


@pytest.fixture
def data(tmp_path: Path) -> str:
    file = tmp_path / "pairs.jsonl"
    file.write_text(json.dumps({"prompt": "p", "chosen": "a", "rejected": "b"}) + "\n")
    return str(file)


def refused(*words: str) -> str:
    result = CliRunner().invoke(command, [*words, "--gpu", "none"])
    assert result.exception is not None and result.exit_code != 0
    return str(result.exception) if not isinstance(result.exception, SystemExit) else result.output


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("kto",), "'kto' is not one of 'sft', 'lora', 'qlora', 'reward', 'dpo', 'grpo', 'ppo'"),
        (("ppo", "--model", "demo", "--data", "x"), "--emit openrlhf or --emit verl"),
        (("reward", "--model", "demo"), "needs --data"),
        (("sft", "--model", "demo", "--data", "x", "--patience", "2"), "--patience is for reward"),
        (("grpo", "--model", "demo", "--data", "x"), "grpo needs --reward"),
        (
            ("reward", "--model", "demo", "--data", "x", "--lora-rank", "4", "--save-as", "reward-head"),
            "in PEFT's layout",
        ),
        (("reward", "--model", "demo", "--data", "x", "--lora-rank", "4", "--freeze-base"), "leave --lora-rank out"),
        (("sft", "--model", "demo", "--data", "x", "--freeze-base"), "has none to train"),
        (("sft", "--model", "demo", "--data", "x", "--label-smoothing", "0.1"), "is for reward, dpo"),
        (("sft", "--model", "demo", "--data", "x", "--attention", "flash"), "as little memory on a CPU"),
        (
            ("lora", "--model", "demo", "--data", "x", "--quant", "fp16", "--precision", "amp"),
            "--precision fp32 (not amp)",
        ),
    ],
)
def test_what_contradicts_itself_is_refused(words: tuple[str, ...], told: str) -> None:
    assert told in refused(*words)


def test_for_trl_the_files_that_its_command_names_are_written(data: str, tmp_path: Path) -> None:
    words = ["reward", "--model", "demo", "--data", data, "--eval-share", "0", "--gpu", "a100-80gb:2", "--emit", "trl"]
    output = tmp_path / "out"
    done = CliRunner().invoke(command, [*words, "--output", str(output)])
    assert done.exit_code == 0, done.output
    named = [Path(word) for word in done.stdout.splitlines()[-1].split() if word.endswith(".yaml")]
    assert [file.name for file in named] == ["train.yaml", "accelerate.yaml"]
    made, accelerate = (yaml.safe_load(file.read_text()) for file in named)
    assert (accelerate["num_processes"], made["use_cpu"]) == (2, False)
    assert len((Path(made["dataset_name"]) / "train.jsonl").read_text().splitlines()) == 1
    again = CliRunner().invoke(command, [*words, "--output", str(output)])
    assert "is not empty" in str(again.exception)


def test_data_is_looked_at_before_anything_is_planned(tmp_path: Path) -> None:
    result = CliRunner().invoke(command, ["sft", "--model", "demo", "--data", "nowhere.jsonl", "--gpu", "none"])
    assert "there is no file 'nowhere.jsonl'" in str(result.exception)
    assert not result.stdout
    (tmp_path / "pairs.jsonl").write_text(json.dumps({"question": "?"}) + "\n")
    told = refused("reward", "--model", "demo", "--data", str(tmp_path / "pairs.jsonl"))
    assert "none of the first 1 rows can be trained on by reward:\n  pairs.jsonl:1: the row has the one field" in told


def test_processes_share_the_ram() -> None:
    hardware = Hardware((), 8 * GIB, 6 * GIB, 2)
    (first, second) = devices_of(hardware, 2)
    assert first == second and first.total_bytes == 4 * GIB
    card = Device("card", "cuda", 24 * GIB, 0)
    assert devices_of(Hardware((card, card), 8 * GIB, 6 * GIB, 2), 1) == (card,)
    with pytest.raises(UsageError, match="--gpus is 3, but this machine has 2"):
        devices_of(Hardware((card, card), 8 * GIB, 6 * GIB, 2), 3)


def test_cards_that_are_not_here_are_for_plans(data: str) -> None:
    result = CliRunner().invoke(command, ["reward", "--model", "demo", "--data", data, "--gpu", "h100:8"])
    assert "plan with it: qserve plan train" in str(result.exception)


def test_another_trainer_s_command_is_planned_for_its_cards() -> None:
    words = ["grpo", "--model", "Qwen/Qwen2-7B", "--data", "p.parquet", "--reward", "/rm", "--lora-rank", "16"]
    words += ["--zero", "3", "--micro-batch", "7", "--max-length", "1024", "--emit", "verl"]
    result = CliRunner().invoke(command, [*words, "--gpu", "a10:4", "--vllm", "separate"])
    assert result.exit_code == 0
    assert "actor_rollout_ref.model.lora_rank=16" in result.output
    assert "trainer.n_gpus_per_node=3" in result.output  # the fourth is the engine's
    result = CliRunner().invoke(command, [*words, "--gpu", "a10:3", "--vllm", "colocated"])
    assert isinstance(result.exception, DoesNotFit)


def test_an_output_that_holds_something_is_left_alone(data: str, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "precious.txt").write_text("x")
    told = refused("reward", "--model", "demo", "--data", data, "--output", str(tmp_path / "out"))
    assert "is not empty" in told
    told = refused("reward", "--model", "demo", "--data", data, "--output", str(tmp_path / "out"), "--resume")
    assert "has no run to resume" in told
    assert (tmp_path / "out" / "precious.txt").read_text() == "x"


def rows(file: Path, num_good: int, num_broken: int) -> None:
    good = ({"prompt": f"p{number}", "chosen": "a", "rejected": "b"} for number in range(num_good))
    lines = [*map(json.dumps, good), *(json.dumps({"question": number}) for number in range(num_broken))]
    file.write_text("".join(f"{line}\n" for line in lines))


@pytest.mark.parametrize("emit", [(), ("--emit", "trl")])
def test_the_command_is_taken_again_once_its_data_is_mended(emit, tmp_path: Path, monkeypatch) -> None:
    class Launched(Exception):
        """The run was about to be started."""

    monkeypatch.setattr("qserve.training.launch.launch", Mock(side_effect=Launched))
    file, output = tmp_path / "pairs.jsonl", tmp_path / "out"
    words = ["reward", "demo", "--data", str(file), "--output", str(output), "--gpu", "none", *emit]
    words += ["--state-dir", str(tmp_path / "state")]
    rows(file, 30, 7)
    for _ in range(2):  # refused for the data each time, not for what the first time left
        told = refused(*words)
        assert "7 of 37 rows are broken" in told and f"\n  and more in {output}/run/broken.jsonl" in told
    assert len((output / "run" / "broken.jsonl").read_text().splitlines()) == 7
    assert [path.name for path in output.rglob("*")] == ["run", "broken.jsonl"]
    rows(file, 30, 0)
    done = CliRunner().invoke(command, words)
    assert done.exit_code == 0 if emit else isinstance(done.exception, Launched), done.output
    assert not (output / "run" / "broken.jsonl").exists()


def job(**fields) -> TrainingJob:
    """Of the demo on a card that is far too small."""
    request = TrainingRequest("sft", tiled_loss=True, precision="amp", max_length=2048, **fields)
    card = Device("small", "cuda", int(1.0 * GIB))
    return TrainingJob("demo", resolve("demo").spec, None, (card,), request)


def test_processes_on_a_cpu_are_offered_zero_and_nothing_to_offload(capsys, monkeypatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())  # DeepSpeed is installed
    cpu = Device("large", "cpu", int(90 * GIB))
    request = TrainingRequest("sft", tiled_loss=True, precision="fp32", max_length=512)
    large = TrainingJob("Qwen/Qwen2-7B", resolve("Qwen/Qwen2-7B").spec, None, (cpu, cpu), request)
    with pytest.raises(DoesNotFit):
        fitting_request(large, auto=False, data="d.jsonl")
    shown = capsys.readouterr().out
    assert "--zero 3" in shown and "--offload" not in shown


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("--zero", "2", "--precision", "amp"), "can shard only in fp32"),
        (("--zero", "3", "--offload-param", "nvme"), "for cards"),
        (("--fsdp", "--zero", "2"), "not both"),
        (("--fsdp", "--optimizer", "adafactor"), "adamw-fused"),
    ],
)
def test_what_a_cpu_does_not_shard_is_refused(flags, told, data: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())  # DeepSpeed is installed
    words = (
        "reward",
        "--model",
        "demo",
        "--data",
        data,
        "--output",
        str(tmp_path / "o"),
        "--gpu",
        "none",
        "--gpus",
        "2",
    )
    assert told in refused(*words, *flags)


def test_what_does_not_fit_is_refused_with_commands_that_do(capsys) -> None:
    with pytest.raises(DoesNotFit, match="the run is not started"):
        fitting_request(job(micro_batch=32), auto=False, data="d.jsonl")
    shown = capsys.readouterr().out
    assert "qserve train sft --model demo" in shown and "--data d.jsonl" in shown


def test_for_programs_a_plan_that_does_not_fit_is_the_one_object(data: str) -> None:
    words = ["reward", "--model", "Qwen/Qwen3-32B", "--data", data, "--gpu", "none", "--json", "--micro-batch", "64"]
    done = CliRunner().invoke(command, words)
    assert isinstance(done.exception, DoesNotFit)
    told = json.loads(done.stdout)
    assert told["fits"] is False and told["short_bytes"] > 0
    assert all(one["command"].startswith("qserve train reward --model") for one in told["suggestions"])


def test_auto_takes_the_cheapest_that_fits_and_keeps_the_batch(capsys) -> None:
    asked = job(micro_batch=32, gradient_checkpointing=True)
    taken, plan = fitting_request(asked, auto=True, data="d.jsonl")
    assert plan.fits
    request = taken.request
    assert request.micro_batch < 32
    assert request.micro_batch * request.gradient_accumulation_steps == 32
    assert "--auto:" in capsys.readouterr().out


def test_out_of_memory_names_the_lever(tmp_path: Path) -> None:
    events = [{"event": "failed", "kind": "memory", "reason": "CUDA out of memory"}]
    outcome = outcome_of(events, 1, tmp_path / "log", job(micro_batch=8, gradient_checkpointing=False))
    assert outcome.state == "failed"
    assert "recompute activations (gradient checkpointing) (20 to 30 % slower)" in str(outcome.reason)
    killed = outcome_of([], -9, tmp_path / "log", job(micro_batch=8))
    assert "SIGKILL" in str(killed.reason) and "a smaller micro-batch" in str(killed.reason)


def test_a_process_that_ends_without_a_word_shows_its_log(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("line 1\nModuleNotFoundError: nothing\n")
    outcome = outcome_of([], 1, tmp_path / "log", job())
    assert "ModuleNotFoundError: nothing" in str(outcome.reason)


def test_a_recipe_with_a_model_is_served(data: str, tmp_path: Path) -> None:
    recipe = tmp_path / "rewards.yaml"
    recipe.write_text("parts:\n  - {name: quality, model: demo, weight: 1.0}\n")
    told = refused("grpo", "--model", "demo", "--data", data, "--output", str(tmp_path / "o"), "--reward", str(recipe))
    assert f"qserve up --reward {recipe}" in told


def test_a_hub_id_is_no_path(tmp_path: Path) -> None:
    (tmp_path / "pairs.jsonl").touch()
    assert source_at(str(tmp_path / "pairs.jsonl")) == str(tmp_path / "pairs.jsonl")
    assert source_at("trl-lib/ultrafeedback_binarized") == "trl-lib/ultrafeedback_binarized"


def test_another_trainer_is_given_the_hub_id_of_a_short_name(data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    words = ["reward", "qwen3-0.6b", "--data", data, "--gpu", "a100-80gb", "--emit", "ms-swift"]
    printed = CliRunner().invoke(command, words).output
    assert "--model Qwen/Qwen3-0.6B" in printed


def test_a_download_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the hub's client brings is tests/unit/hub/test_download.py; here it is said on the command's own line."""
    told: list[str] = []

    class Line:
        def phase(self, text: str, *, is_short: bool = False) -> None:
            told.append(text)

        def arrived(self, arrived: Arrived) -> None:
            told.append(str(arrived))

    def downloaded(checkpoint: Any, progress: Any) -> Any:
        progress(Arrived(MIB, 2 * MIB, "1 MiB/s"))
        return checkpoint

    monkeypatch.setattr("qserve.hub.download.download", downloaded)
    demo = resolve("demo")
    assert _downloaded(demo, cast("Any", Line()))
    assert told == [f"downloading {demo.id}", "1 MiB of 2 MiB · 1 MiB/s"]
