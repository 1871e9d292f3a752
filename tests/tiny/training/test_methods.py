"""Every method of `qserve train`, by TRL's trainers on the demo model: what it planned, what it saved, how it fails."""

from __future__ import annotations

import json
import math

import pytest
from safetensors import safe_open

from qserve.demo import chat_model_path
from qserve.hub import resolve
from qserve.planner.training.card_memory import Run
from qserve.planner.training.models import cast_of
from qserve.reward.checkpoints.recognise import recognise
from qserve.reward.settings import RewardSettings
from qserve.training.job import TrainingRun

METHODS = ("reward", "reward-lora", "reward-head", "sft", "lora", "qlora", "dpo", "grpo")


@pytest.mark.parametrize("name", METHODS)
def test_it_trains_and_saves(runs, name):
    assert name not in runs.failures
    assert runs.events(name, "ended")
    losses = runs.losses(name)
    assert losses and all(math.isfinite(loss) for _, loss in losses)
    assert list((runs.folder / name).glob("*.safetensors"))
    assert (runs.folder / name / "tokenizer.json").exists()


@pytest.mark.parametrize("name", [name for name in METHODS if name != "qlora"])
def test_weights_gradients_and_states_are_what_was_planned(runs, name):
    """Of a base in 4 bit torch counts the packed bytes, with what bitsandbytes keeps beside them: not compared here."""
    job = TrainingRun.read(runs.folder / name / "run" / "job.json")
    cast = cast_of(resolve("demo").spec, job.request)
    (states,) = [states for model, states in Run(job.request, cast, 1).states() if model is cast[0]]
    measured = runs.events(name, "memory")[-1]
    assert measured["weights_bytes"] == pytest.approx(states.weights_bytes, rel=1e-3)
    assert measured["gradients_bytes"] == pytest.approx(states.gradients_bytes, rel=1e-3)
    assert measured["optimizer_bytes"] == pytest.approx(states.optimizer_bytes, rel=0.01)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("reward", "sequence-classification"), ("reward-head", "reward-head"), ("reward-lora", "lora")],
)
def test_a_reward_model_is_saved_as_one(runs, name, kind):
    assert recognise(runs.folder / name, RewardSettings()).format == kind


def test_only_the_head_of_a_frozen_base_is_trained(runs):
    weights = runs.folder / "reward-head" / "model.safetensors"
    with safe_open(weights, "pt") as trained, safe_open(chat_model_path() / "model.safetensors", "pt") as base:
        name = "model.layers.0.mlp.up_proj.weight"
        assert (trained.get_tensor(f"base_{name}") == base.get_tensor(name).float()).all()
        assert trained.get_tensor("reward_head.weight").shape == (1, 192)
    (loaded,) = runs.events("reward-head", "loaded")
    assert loaded["trainable"] == 192


def test_a_trainer_tells_its_held_out_rewards(runs):
    rows = [json.loads(line) for line in (runs.folder / "reward" / "run" / "held_out.jsonl").read_text().splitlines()]
    (told,) = runs.events("reward", "held out")
    assert told["pairs"] == len(rows) > 0
    assert told["right"] == sum(row["chosen"] > row["rejected"] for row in rows)


def test_rollouts_are_rewarded_by_a_checkpoint_and_by_rules(runs):
    logged = [one for one in runs.events("grpo", "logged") if "reward" in one]
    names = {key.split("/")[1] for one in logged for key in one if key.startswith("rewards/")}
    assert names == {"reward", "rules_yaml"}
    for one in logged:
        parts = one["rewards/reward/mean"] + 0.5 * one["rewards/rules_yaml/mean"]
        assert one["reward"] == pytest.approx(parts, abs=1e-4)


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


def test_a_run_that_has_ended_is_not_trained_further(runs):
    assert [one["step"] for one in runs.events("full-disk", "ended")] == [6, 6]
    assert max(step for step, _ in runs.losses("full-disk")) == 6


def test_a_run_that_goes_on_has_the_losses_that_it_would_have_had(runs):
    first = [loss for step, loss in runs.losses("full-disk") if step in (3, 4)]
    assert len(first) == 4
    assert first[:2] == first[2:]
