"""`--judge`: a checkpoint that writes verdicts is hosted twice over, as chat and as rewards that ask it."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from qserve.cli.up.hosting import hosted_models
from qserve.errors import BrokenCheckpoint, UsageError
from qserve.planner import plan_request
from qserve.reward.find import find_reward
from qserve.reward.recipe import read_recipe
from qserve.reward.settings import RewardSettings
from qserve.service.knowledge import Knowledge
from qserve.service.machine import Machine, hardware_of
from qserve.service.plan import plan_service
from qserve.service.request import RewardRequest, ServiceRequest
from qserve.supervisor import ModelDeployment
from qserve.supervisor.screen import Screen


def hosted(folder: Path, model: str | None, reward: str, **settings: Any) -> list[ModelDeployment]:
    scored = RewardRequest(reward, settings=RewardSettings(**settings))
    request = ServiceRequest(model, plan_request(engine="transformers"), scored)
    service = plan_service(request, Machine.named("none", serves=True), Knowledge(), folder)
    return hosted_models(service, folder, Screen(Console(file=io.StringIO())))


@pytest.mark.parametrize("model", [None, "demo"])
def test_a_judge_is_served_as_chat_and_asked_for_rewards(model: str | None, tmp_path: Path) -> None:
    chat, rewards = hosted(tmp_path, model, "demo", judge="pairwise")
    assert (chat.role, chat.names) == ("chat", ("demo",))
    assert (rewards.role, rewards.names) == ("reward", ("demo-judge",))
    assert rewards.reward.recipe is not None and rewards.reward.judge is None
    recipe = read_recipe(Path(rewards.reward.recipe))
    assert recipe.asks_served and [part.name for part in recipe.parts] == ["judge"]


def test_what_can_t_judge_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"second chat model next to demo.*leave --model out"):
        hosted(tmp_path, "demo", "Qwen/Qwen3-0.6B", judge="pointwise")
    with pytest.raises(UsageError, match=r"^--judge nobody: there is no judge template 'nobody'"):
        hosted(tmp_path, None, "demo", judge="nobody")
    with pytest.raises(UsageError, match=r"^--judge rubric: the template asks for a rubric"):
        hosted(tmp_path, None, "demo", judge="rubric")
    recipe = tmp_path / "rewards.yaml"
    recipe.write_text("parts: [{name: a, judge: pointwise, url: served}]")
    with pytest.raises(UsageError, match=r"is the chat model of the same service.*add --model"):
        hosted(tmp_path, None, str(recipe))
    with pytest.raises(UsageError, match=r"qserve up --reward demo --judge pointwise, and give its address with --url"):
        find_reward("demo", RewardSettings(judge="pointwise"))


def test_a_causal_model_as_a_reward_is_told_of_judges(tmp_path: Path) -> None:
    from qserve.demo import chat_model_path

    with pytest.raises(BrokenCheckpoint, match=r"has no reward head.*--judge pointwise.*--answer-tokens yes,no"):
        hosted(tmp_path, None, str(chat_model_path()))


def test_a_judge_leaves_all_cards_to_its_chat_model(tmp_path: Path) -> None:
    request = ServiceRequest(None, reward=RewardRequest("demo", settings=RewardSettings(judge="pairwise")))
    service = plan_service(request, Machine(hardware_of("rtx-4090:2")), Knowledge(), tmp_path)
    assert service.chat is not None and service.reward is not None
    assert len(service.chat.replicas[0].cards) == 2 and service.reward.whole.on_cpu
