"""A classifier of several labels: whatever is said of it has been tried."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from qserve.cli.plan.command import command as plan
from qserve.cli.up.command import command as up
from qserve.reward.find import find_reward
from qserve.reward.settings import RewardSettings
from tests.unit.reward.stored import HIDDEN, body, write_folder

LABELS = {str(index): f"stars-{index + 1}" for index in range(5)}


@pytest.fixture
def classifier(tmp_path):
    tensors = body() | {"score.weight": (5, HIDDEN)}
    return write_folder(tmp_path / "stars", tensors, num_labels=5, id2label=LABELS)


def test_up_as_a_chat_model_names_the_way_that_works(classifier, tmp_path):
    for engine in ((), ("--engine", "vllm"), ("--engine", "transformers")):
        result = CliRunner().invoke(up, ["--model", str(classifier), "--state-dir", str(tmp_path), *engine])
        said = str(result.output) + str(result.exception or "")
        assert f"qserve up --reward {classifier}" in said, said
        assert result.exit_code != 0


def test_as_a_reward_model_it_is_found_with_its_labels(classifier):
    found = find_reward(str(classifier), RewardSettings())
    assert found.format == "multi-attribute"
    assert found.labels == tuple(LABELS.values())


def test_the_plan_fits_as_the_reward_model_that_it_is(classifier):
    result = CliRunner().invoke(plan, ["--model", "demo", "--reward", str(classifier), "--json"])
    assert json.loads(result.output), result.output


def test_on_vllm_it_is_refused_with_the_scorer_that_takes_it(classifier, tmp_path):
    arguments = ["--reward", str(classifier), "--reward-engine", "vllm", "--state-dir", str(tmp_path)]
    said = CliRunner().invoke(up, arguments)
    assert "leave --reward-engine vllm out" in str(said.output) + str(said.exception)
