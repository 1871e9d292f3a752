"""`qserve train` with TRL's trainers on the demo model: what it planned, what it saved, how it fails, how it goes on.

One file, so that the runs of methods.py are made once.
"""

from __future__ import annotations

import errno
import importlib.util
import json
import math
import os
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from transformers import TrainerState

from qserve.demo import chat_model_path
from qserve.detect import detect
from qserve.hub import resolve
from qserve.planner import PlanRequest
from qserve.planner.training.card_memory import Run
from qserve.planner.training.models import cast_of
from qserve.reward.checkpoints.recognise import recognise
from qserve.reward.open import open_scorer
from qserve.reward.settings import RewardSettings
from qserve.runs import RunStore
from qserve.runs.verdict import held_out_facts
from qserve.training.job import TrainingRun
from qserve.training.process import callbacks
from qserve.training.process.events import EventLog
from qserve.training.process.memory import PeakMemory
from qserve.training.process.recorded import Recorded, Weighed
from qserve.training.process.saving import save_model
from tests.processes import python_for
from tests.tiny.reward.host import MODEL, Host

ROOT = Path(__file__).parents[3]
# A hang fails, a busy machine does not: all runs together take two minutes of processor time.
METHODS_LIMIT_S, LIMIT_S = 1200, 300
pytestmark = pytest.mark.timeout(METHODS_LIMIT_S + 60)
BY_TWO = ("ddp", "fsdp", "zero-1", "zero-2", "zero-3")
METHODS = (
    "reward",
    "reward-lora",
    "reward-head",
    "labels",
    "labels-lora",
    "labels-head",
    "steps",
    "steps-head",
    "sft",
    "lora",
    "qlora",
    "lora-int8",
    "lora-fp16",
    "dpo",
    "grpo",
)


class Runs:
    """What lies below one folder of methods.py."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.failures: dict[str, Any] = json.loads((folder / "failures.json").read_text())

    def events(self, name: str, kind: str) -> list[dict[str, Any]]:
        lines = (self.folder / name / "run" / "events.jsonl").read_text().splitlines()
        return [event for event in map(json.loads, lines) if event["event"] == kind]

    def losses(self, name: str) -> list[tuple[int, float]]:
        return [(one["step"], one["loss"]) for one in self.events(name, "logged") if "loss" in one]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder = tmp_path_factory.mktemp("methods")
    # No file as its main module: the process that the rules are computed in would import that, and torch with it.
    # No collection of garbage while it imports: `main` turns that on again.
    code = "import gc; gc.disable(); from tests.tiny.training.methods import main; main()"
    command = [*python_for(code), str(folder)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=METHODS_LIMIT_S,
        check=False,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return Runs(folder)


@pytest.mark.parametrize("name", METHODS)
def test_it_trains_and_saves(runs, name):
    assert name not in runs.failures
    assert runs.events(name, "ended")
    losses = runs.losses(name)
    assert losses and all(math.isfinite(loss) for _, loss in losses)
    assert list((runs.folder / name).glob("*.safetensors"))
    assert (runs.folder / name / "tokenizer.json").exists()


@pytest.mark.parametrize("name", METHODS)
def test_weights_gradients_and_states_are_what_was_planned(runs, name):
    """bitsandbytes keeps scales where torch does not look for parameters: 2 % of an int8 base of this width, more of
    4 bit, whose weights are not compared here.
    """
    job = TrainingRun.read(runs.folder / name / "run" / "job.json")
    cast = cast_of(resolve("demo").spec, job.request)
    (states,) = [states for model, states in Run(job.request, cast, 1).states() if model is cast[0]]
    measured = runs.events(name, "memory")[-1]
    if name != "qlora":
        within = 0.03 if name == "lora-int8" else 1e-3
        assert measured["weights_bytes"] == pytest.approx(states.weights_bytes, rel=within)
    assert measured["gradients_bytes"] == pytest.approx(states.gradients_bytes, rel=1e-3)
    assert measured["optimizer_bytes"] == pytest.approx(states.optimizer_bytes, rel=0.01)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("reward", "sequence-classification"),
        ("reward-head", "reward-head"),
        ("reward-lora", "lora"),
        ("labels", "multi-attribute"),
        ("labels-lora", "multi-attribute"),
        ("labels-head", "multi-attribute"),
        ("steps", "process-reward-model"),
        ("steps-head", "process-reward-model"),
    ],
)
def test_a_reward_model_is_saved_as_one(runs, name, kind):
    assert recognise(runs.folder / name, RewardSettings()).format == kind


@pytest.mark.parametrize("name", ["labels", "labels-lora", "labels-head"])
def test_several_labels_are_hosted_by_name_with_the_trainers_values(runs, name):
    check = json.loads((runs.folder / "checks.json").read_text())[name]
    assert check["num_texts"] > 3 and check["largest_difference"] < 1e-4, check
    scored = (runs.folder / name / "run" / "check_scored.jsonl").read_text().splitlines()
    weights = {"right": 1.0, "length": -2.0} if name == "labels" else {"right": 0.5, "length": 0.5}
    for line in map(json.loads, scored):
        assert list(line["attributes"]) == ["right", "length"]
        weighed = sum(weight * line["attributes"][label] for label, weight in weights.items())
        assert line["reward"] == pytest.approx(weighed, abs=1e-5)
    logged = [one for one in runs.events(name, "logged") if "mse/right" in one]
    assert logged[0]["loss"] == pytest.approx((logged[0]["mse/right"] + logged[0]["mse/length"]) / 2, rel=1e-3)


@pytest.mark.parametrize("name", ["texts", "texts-lora", "texts-head"])
def test_whole_texts_that_end_in_the_pad_token_are_hosted_with_the_trainers_rewards(runs, name):
    check = json.loads((runs.folder / "checks.json").read_text())[name]
    assert check["num_texts"] > 3 and check["largest_difference"] < 1e-4, check
    lines = map(json.loads, (runs.folder / name / "run" / "check.jsonl").read_text().splitlines())
    assert all(line["text"].endswith("<|im_end|>") for line in lines)


@pytest.mark.parametrize("name", ["steps", "steps-head"])
def test_labelled_steps_are_hosted_as_a_process_reward_model_with_the_trainers_values(runs, name):
    check = json.loads((runs.folder / "checks.json").read_text())[name]
    assert check["num_texts"] > 3 and check["largest_difference"] < 1e-4, check
    scored = (runs.folder / name / "run" / "check_scored.jsonl").read_text().splitlines()
    assert all(len(json.loads(line)["steps"]) == 2 for line in scored)


def test_the_example_of_the_docs_and_the_page_beats_guessing(runs):
    """With the defaults for rate, batch and epochs; on the preferences that come with qserve."""
    (held_out,) = runs.events("reward-head", "held out")
    assert held_out_facts(held_out)["verdict"] == "better", held_out


def test_only_the_head_of_a_frozen_base_is_trained(runs):
    weights = runs.folder / "reward-head" / "model.safetensors"
    with safe_open(weights, "pt") as trained, safe_open(chat_model_path() / "model.safetensors", "pt") as base:
        name = "model.layers.0.mlp.up_proj.weight"
        assert (trained.get_tensor(f"base_{name}") == base.get_tensor(name).float()).all()
        assert trained.get_tensor("reward_head.weight").shape == (1, 192)
    (loaded,) = runs.events("reward-head", "loaded")
    assert loaded["trainable"] == 192


@pytest.mark.parametrize("name", ["labels-head", "steps-head"])
def test_of_a_frozen_base_no_weight_changes(runs, name):
    """The embedding has a row more where a token that ends steps was added."""
    base, trained = (load_file(folder / "model.safetensors") for folder in (chat_model_path(), runs.folder / name))
    for tensor, weights in base.items():
        assert (trained[tensor][: len(weights)].float() == weights.float()).all(), tensor


@pytest.mark.parametrize("name", ["reward", "sft", "grpo", "full-disk"])
def test_the_weights_that_are_saved_are_evaluated_once(runs, name):
    """By transformers after the last step; `full-disk` was given again when nothing was left to do."""
    (evaluated,) = runs.events(name, "evaluated")
    assert evaluated["step"] == runs.events(name, "ended")[-1]["step"]


def test_a_trainer_tells_its_held_out_rewards(runs):
    rows = [json.loads(line) for line in (runs.folder / "reward" / "run" / "held_out.jsonl").read_text().splitlines()]
    (told,) = runs.events("reward", "held out")
    assert told["pairs"] == len(rows) > 0
    assert told["right"] == sum(row["chosen"] > row["rejected"] for row in rows)


@pytest.mark.parametrize("name", ["reward", "reward-lora", "reward-head", "ddp", "fsdp", "texts"])
def test_the_accuracy_of_an_evaluation_is_that_of_the_pairs(runs, name):
    """Not TRL's mean of the batches' means, however many pairs the last batch has."""
    rows = [json.loads(line) for line in (runs.folder / name / "run" / "held_out.jsonl").read_text().splitlines()]
    right = sum(row["chosen"] > row["rejected"] for row in rows)
    assert runs.events(name, "evaluated")[-1]["eval_accuracy"] == pytest.approx(right / len(rows), abs=1e-6)


class Logging:
    """As TRL's trainers have it: a mean for each batch, and the mean of these in the log."""

    accelerator = SimpleNamespace(gather_for_metrics=lambda rows: rows)
    model = SimpleNamespace(training=False)

    def __init__(self) -> None:
        self._metrics = {"train": {}, "eval": {"accuracy": []}}

    def compute_loss(self, model, inputs):
        self._metrics["eval"]["accuracy"].append(inputs["right"].float().mean().item())

    def log(self, logs):
        logs.update({name: sum(values) / len(values) for name, values in self._metrics["eval"].items()})


def test_a_short_last_batch_counts_for_its_rows_alone():
    trainer, logs = type("Trainer", (Weighed, Logging), {})(), {}
    for right in ([True] * 8, [False, False, True]):
        trainer.compute_loss(None, {"input_ids": torch.zeros(len(right), 4), "right": torch.tensor(right)})
    trainer.log(logs)
    assert logs["accuracy"] == pytest.approx(9 / 11)


def test_a_loss_of_pairs_has_their_margins_smoothing_and_centring(runs):
    """Of the last evaluation, from the rewards of the same pairs."""
    folder = runs.folder / "reward-lora"
    pairs = [json.loads(line) for line in (folder / "run" / "held_out.jsonl").read_text().splitlines()]
    rows = {one["row"]: one for one in map(json.loads, (folder / "data" / "test.jsonl").read_text().splitlines())}
    losses = []
    for pair in pairs:
        apart = pair["chosen"] - pair["rejected"] - rows[pair["row"]]["margin"]
        turned = 0.8 * math.log1p(math.exp(-apart)) + 0.2 * math.log1p(math.exp(apart))
        losses.append(turned + 0.05 * (pair["chosen"] + pair["rejected"]) ** 2)
    assert runs.events("reward-lora", "evaluated")[-1]["eval_loss"] == pytest.approx(
        sum(losses) / len(losses), rel=1e-3
    )


def test_trl_reads_what_is_planned_for_an_engine_on_a_card(runs):
    told = json.loads((runs.folder / "vllm.json").read_text())
    assert (told["use_vllm"], told["vllm_mode"], told["vllm_gpu_memory_utilization"]) == (True, "colocate", 0.31)
    assert (told["vllm_enable_sleep_mode"], told["vllm_max_model_length"]) == (True, 128)


def test_rollouts_are_rewarded_by_a_checkpoint_and_by_rules(runs):
    logged = [one for one in runs.events("grpo", "logged") if "reward" in one]
    names = {key.split("/")[1] for one in logged for key in one if key.startswith("rewards/")}
    assert names == {"reward", "rules"}
    for one in logged:
        parts = one["rewards/reward/mean"] + 0.5 * one["rewards/rules/mean"]
        assert one["reward"] == pytest.approx(parts, abs=1e-4)


def test_what_a_policy_writes_is_kept_with_its_rewards(runs):
    told = runs.events("grpo", "rollouts")
    assert [one["step"] for one in told] == [1, 2]
    rows = map(json.loads, (runs.folder / "pairs.jsonl").read_text().splitlines())
    asked = [row["prompt"][-1]["content"] for row in rows]
    for one in (sample for event in told for sample in event["samples"]):
        assert one["prompt"] in asked
        assert one["reward"] == pytest.approx(one["rewards"]["reward"] + 0.5 * one["rewards"]["rules"], abs=1e-4)
    assert all(len(event["samples"]) == 2 for event in told)  # as many as were generated for a prompt


def test_the_rate_of_products_is_measured_before_a_model_is_there(runs):
    (told,) = runs.events("sft", "imported")
    assert 1e8 < told["peak_flops_per_s"] < 1e14


def test_a_loss_that_is_no_number_ends_the_run_with_its_rows(runs):
    failure = runs.failures["nan"]
    assert failure["kind"] == "nan"
    assert len(failure["sources"]) == 2
    assert all(source.startswith("pairs.jsonl:") for source in failure["sources"])
    assert failure["sources"][0] in failure["reason"]


def test_a_full_disk_costs_the_save_and_no_earlier_one(runs):
    assert runs.failures["full-disk"]["kind"] == "disk"
    assert "--resume" in runs.failures["full-disk"]["reason"]
    assert [one["from_step"] for one in runs.events("full-disk", "train")] == [0, 2]


def test_what_filled_the_disk_is_removed(tmp_path):
    """The folder beside: else there would be no room for the event that says so."""

    class Trainer:
        def _get_output_dir(self, trial):
            return str(tmp_path)

        def _save_checkpoint(self, model, trial):
            part = Path(self._get_output_dir(trial)) / "checkpoint-1" / "model.safetensors"
            part.parent.mkdir(parents=True)
            part.touch()
            raise OSError(errno.ENOSPC, "full")

    saving = type("Saving", (Recorded, Trainer), {"__init__": lambda _: None})()
    saving.args = SimpleNamespace(save_total_limit=2)
    with pytest.raises(OSError, match="full"):
        saving._save_checkpoint(None, None)
    assert not list(tmp_path.iterdir())
    assert saving.args.save_total_limit == 2


def test_a_run_that_has_ended_is_not_trained_further(runs):
    assert [one["step"] for one in runs.events("full-disk", "ended")] == [6, 6]
    assert max(step for step, _ in runs.losses("full-disk")) == 6


def test_a_run_that_goes_on_has_the_losses_that_it_would_have_had(runs):
    first = [loss for step, loss in runs.losses("full-disk") if step in (3, 4)]
    assert len(first) == 4
    assert first[:2] == first[2:]


def test_killed_and_gone_on_with_it_is_the_run_that_it_would_have_been(runs):
    assert [one["from_step"] for one in runs.events("killed", "train")] == [0, 2]
    assert dict(runs.losses("killed")) == dict(runs.losses("full-disk"))


@pytest.fixture
def by_two(request: pytest.FixtureRequest) -> str:
    """A run of two processes."""
    if request.param.startswith("zero") and importlib.util.find_spec("deepspeed") is None:
        pytest.skip("DeepSpeed could not be built here (make setup says why)")
    return request.param


@pytest.mark.parametrize("by_two", BY_TWO, indirect=True)
def test_two_processes_have_the_losses_of_one(runs, by_two):
    """Half of each batch in each, over gloo, in fp32; two of them stopped after a step and gone on with."""
    one, two = (dict(runs.losses(which)) for which in ("reward", by_two))
    assert sorted(two) == [1, 2, 3, 4]
    assert two == pytest.approx(one, abs=1e-4)
    expected, found = (runs.events(which, "evaluated")[-1] for which in ("ddp", by_two))
    assert found["eval_loss"] == pytest.approx(expected["eval_loss"], abs=1e-4)


@pytest.mark.parametrize("by_two", BY_TWO, indirect=True)
def test_two_processes_save_the_model_of_one(runs, by_two):
    """Whole, whatever was sharded: AdamW moves a weight by up to its rate where its gradient is next to nothing."""
    expected, found = (load_file(runs.folder / which / "model.safetensors") for which in ("reward", by_two))
    assert found.keys() == expected.keys()
    for tensor, weights in expected.items():
        assert found[tensor].shape == weights.shape
        assert (found[tensor].float() - weights.float()).abs().mean() < 1e-4, tensor


@pytest.mark.parametrize("by_two", BY_TWO[1:], indirect=True)
def test_a_process_holds_its_share_of_the_states(runs, by_two):
    job = TrainingRun.read(runs.folder / by_two / "run" / "job.json")
    cast = cast_of(resolve("demo").spec, job.request)
    (states,) = [states for _, states in Run(replace(job.request, offload_optimizer="none"), cast, 2).states()]
    measured = runs.events(by_two, "memory")[-1]
    assert measured["optimizer_bytes"] == pytest.approx(states.optimizer_bytes, rel=0.01)


def test_the_files_shard_without_qserve(runs):
    """Every layer and the model around them, by accelerate and TRL alone; what is saved is what qserve's run saves."""
    folder = runs.folder / "fsdp-script"
    assert int((folder / "sharded").read_text()) > 4
    expected, found = (load_file(of / "model.safetensors") for of in (runs.folder / "fsdp", folder))
    assert found.keys() == expected.keys()
    assert all((found[one] - expected[one]).abs().mean() < 1e-4 for one in expected)


@pytest.mark.parametrize("tight", [True, False])
def test_freed_blocks_go_back_before_every_step_of_the_optimizer_where_the_heap_is_tight(monkeypatch, tight):
    trimmed = []
    monkeypatch.setattr(callbacks, "trim_heap", lambda: trimmed.append(True))
    measuring = callbacks.MemoryMeter(EventLog(None), PeakMemory("cpu"), gives_back=tight)
    measuring.on_train_begin(None, TrainerState(), None)  # what loading left
    assert len(trimmed) == 1
    for _ in range(3):  # on steps that are not measured, too
        measuring.on_pre_optimizer_step(None, None, None)
    assert len(trimmed) == (4 if tight else 1)


@pytest.mark.parametrize("begins_at", [0, 7, 9998])
def test_the_first_steps_of_a_run_that_is_resumed_are_measured_too(tmp_path, begins_at):
    """It may do no more than one: stopped by Ctrl-C before its last step."""
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    file = tmp_path / "events.jsonl"
    measuring = callbacks.MemoryMeter(EventLog(file), PeakMemory("cpu"))
    state = TrainerState(global_step=begins_at)
    measuring.on_train_begin(None, state, None)
    for _ in range(7):
        measuring.on_step_begin(None, state, None)
        model(torch.ones(2, 4)).sum().backward()
        measuring.on_pre_optimizer_step(None, state, None, model=model)
        optimizer.step()
        measuring.on_optimizer_step(None, state, None, model=model, optimizer=optimizer)
        state.global_step += 1
    events = [json.loads(line) for line in file.read_text().splitlines()]
    assert [one["step"] for one in events] == list(range(begins_at + 1, begins_at + 6))
    assert events[0]["optimizer_bytes"] == 2 * sum(one.nbytes for one in model.parameters())


def test_the_first_process_alone_clears_the_folder_that_all_save_into(runs, tmp_path):
    run = replace(TrainingRun.read(runs.folder / "ddp" / "run" / "job.json"), output=tmp_path)
    begun = tmp_path / ".model" / "model.safetensors"
    begun.parent.mkdir()
    begun.touch()
    waited = []
    accelerator = SimpleNamespace(wait_for_everyone=lambda: waited.append(True))
    second = SimpleNamespace(is_world_process_zero=lambda: False, accelerator=accelerator, save_model=lambda _: None)
    save_model(second, run)
    assert begun.exists() and waited


def called(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "qserve", "train", *arguments]


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def flags(runs, output: Path, state: Path) -> tuple[str, ...]:
    """Those of the run `full-disk` of methods.py."""
    return (
        "reward",
        "--model",
        "demo",
        "--data",
        str(runs.folder / "pairs.jsonl"),
        "--eval-share",
        "0.2",
        "--max-steps",
        "6",
        "--eval-steps",
        "6",
        "--save-steps",
        "2",
        "--learning-rate",
        "1e-3",
        "--micro-batch",
        "2",
        "--gradient-accumulation-steps",
        "1",
        "--max-length",
        "128",
        "--no-gradient-checkpointing",
        "--output",
        str(output),
        "--state-dir",
        str(state),
        "--gpu",
        "none",
    )


def wait_for_step(file: Path, step: int, process: subprocess.Popen[str]) -> None:
    until = time.monotonic() + LIMIT_S
    while time.monotonic() < until:
        lines = file.read_text().splitlines() if file.exists() else []
        if any(one["event"] == "logged" and one["step"] >= step for one in map(json.loads, lines)):
            return
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    raise AssertionError(f"no step {step} within {LIMIT_S} s")


def hear_ctrl_c() -> None:
    """What a shell starts in the background ignores the signal, and so would all that it starts."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def files_mapped_by(process: subprocess.Popen[str]) -> str:
    """Paths of the libraries that the process and those below it have loaded."""
    below = psutil.Process(process.pid).children(recursive=True)
    return "\n".join(mapped.path for one in below for mapped in one.memory_maps())


def told_at_ctrl_c(given: tuple[str, ...], events: Path) -> tuple[str, str]:
    """What a run prints that is interrupted after its first step, and what `files_mapped_by` found by then."""
    process = subprocess.Popen(
        called(*given),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        preexec_fn=hear_ctrl_c,
    )
    wait_for_step(events, 1, process)
    mapped = files_mapped_by(process)
    process.send_signal(signal.SIGINT)
    told, complaint = process.communicate(timeout=LIMIT_S)
    assert process.returncode in (0, 130), complaint
    return told, mapped


class Interrupted:
    """`qserve train reward`, interrupted by Ctrl-C and gone on with by the same command."""

    def __init__(self, runs: Runs, folder: Path) -> None:
        self.state = folder / "state"
        for number in range(3):  # on a busy machine all six steps may be done before the signal is sent
            self.output = folder / f"model-{number}"
            given, events = flags(runs, self.output, self.state), self.output / "run" / "events.jsonl"
            self.told, self.mapped = told_at_ctrl_c(given, events)
            if "Stopped" in self.told:
                break
        # The command that is printed, whole.
        self.next = next(line for line in self.told.splitlines() if line.startswith("Next")).removeprefix("Next")
        self.resumed = subprocess.run(
            called(*shlex.split(self.next)[2:]),
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
            env=environment(),
        )
        self.events = [json.loads(line) for line in events.read_text().splitlines()]


@pytest.fixture(scope="module")
def interrupted(runs: Runs, tmp_path_factory: pytest.TempPathFactory) -> Interrupted:
    return Interrupted(runs, tmp_path_factory.mktemp("interrupted"))


def test_ctrl_c_saves_and_the_printed_command_resumes(runs, interrupted):
    (stopped,) = [one["step"] for one in interrupted.events if one["event"] == "stopped"]
    assert f"Stopped  after step {stopped} of 6\nSaved    checkpoint of step {stopped}\n" in interrupted.told
    assert interrupted.resumed.returncode == 0, interrupted.resumed.stdout + interrupted.resumed.stderr
    assert [one["from_step"] for one in interrupted.events if one["event"] == "train"] == [0, stopped]
    logged = [one for one in interrupted.events if one["event"] == "logged" and "loss" in one]
    assert [one["step"] for one in logged] == list(range(1, 7))
    assert {one["step"]: one["loss"] for one in logged} == dict(runs.losses("full-disk"))


def test_a_run_loads_no_package_that_it_does_not_use(interrupted):
    assert "/torch/" in interrupted.mapped
    assert "/sklearn/" not in interrupted.mapped and "/vllm/" not in interrupted.mapped


def test_a_saved_reward_model_is_checked_and_its_run_is_kept(interrupted):
    assert "0 of" in interrupted.resumed.stdout and "pairs differ" in interrupted.resumed.stdout
    document = RunStore.open(interrupted.state / "qserve").trainings()[-1].document
    assert document["check"]["largest_difference"] < 1e-4
    assert document["measured"]["optimizer_bytes"] == document["planned"]["terms"]["optimizer (reward)"]


def test_what_was_trained_is_hosted_and_rewards_as_the_trainer_did(interrupted):
    """By what `qserve up --reward OUTPUT`, the command that `qserve train` ends with, starts: asked for the pairs."""
    output = interrupted.output
    assert f"qserve up --reward {output}" in interrupted.resumed.stdout
    rows = {row["row"]: row for row in map(json.loads, (output / "data" / "test.jsonl").read_text().splitlines())}
    trainer = [json.loads(line) for line in (output / "run" / "held_out.jsonl").read_text().splitlines()]
    pairs = [{name: rows[one["row"]][name] for name in ("prompt", "chosen", "rejected")} for one in trainer]
    host = Host(open_scorer(str(output), RewardSettings(), detect(), PlanRequest()))
    try:
        answer = host.client.post("/v1/reward", json={"model": MODEL, "pairs": pairs})
    finally:
        host.close()
    assert answer.status_code == 200, answer.text
    served = [(one["chosen_reward"], one["rejected_reward"]) for one in answer.json()["pairs"]]
    assert len(served) > 3
    assert served == [
        (pytest.approx(one["chosen"], abs=1e-4), pytest.approx(one["rejected"], abs=1e-4)) for one in trainer
    ]
