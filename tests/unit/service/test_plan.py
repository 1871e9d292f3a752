"""What `plan_service` decides itself: how many servers of a chat model, and on which cards."""

from __future__ import annotations

from pathlib import Path

import pytest

from qserve.detect.packages import Packages
from qserve.errors import UsageError
from qserve.planner import PlanRequest
from qserve.reward.settings import RewardSettings
from qserve.service.knowledge import Knowledge
from qserve.service.machine import Machine, hardware_of
from qserve.service.plan import plan_service
from qserve.service.request import RewardRequest, ServiceRequest


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def test_replicas_on_an_engine_whose_speed_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    for place in ("fitting_plans", "one_stream"):
        monkeypatch.setattr(f"qserve.service.layout.{place}.has_speed", lambda engine: False)
    service = plan_service(ServiceRequest("Qwen/Qwen3-8B", replicas=2), Machine(hardware_of("h100:2")), Knowledge())
    assert service.chat is not None
    assert [len(one.cards) for one in service.chat.replicas] == [1, 1]
    assert not service.chat.whole.speed


def test_a_reward_model_beside_replicas_has_its_card_alone() -> None:
    request = ServiceRequest("Qwen/Qwen3-8B", reward=RewardRequest("demo"), replicas=2)
    service = plan_service(request, Machine(hardware_of("rtx-4090:3")), Knowledge())
    assert service.chat is not None and service.reward is not None
    cards = hardware_of("rtx-4090:3").devices
    assert [one.cards for one in service.chat.replicas] == [cards[:1], cards[1:2]]
    assert [one.cards for one in service.reward.replicas] == [cards[2:]]


def test_what_is_not_asked_for_is_not_planned() -> None:
    service = plan_service(
        ServiceRequest(None, reward=RewardRequest("demo")), Machine(hardware_of("none")), Knowledge()
    )
    assert service.chat is None and len(service.models) == 1
    assert service.fits and service.to_json()["model"]["id"] == "demo"


def test_the_engine_that_is_installed_is_planned_for() -> None:
    hardware, packages = hardware_of("rtx-4090"), Packages({"torch": "2.13.0"})
    service = plan_service(ServiceRequest("Qwen/Qwen3-8B"), Machine(hardware, packages), Knowledge())
    assert service.chat is not None and service.chat.whole.engine == "transformers"
    assert service.passed_over.startswith("not vllm, because ") and not service.obstacle


def test_an_engine_that_was_named_and_is_not_installed_is_planned_and_not_served() -> None:
    request, hardware = ServiceRequest("Qwen/Qwen3-8B", PlanRequest(engine="vllm")), hardware_of("rtx-4090")
    packages = Packages({"torch": "2.13.0"})
    service = plan_service(request, Machine(hardware, packages), Knowledge())
    assert service.chat is not None and service.chat.whole.engine == "vllm"
    assert "pip install" in service.obstacle
    with pytest.raises(UsageError, match="pip install"):
        plan_service(request, Machine(hardware, packages, serves=True), Knowledge())


def test_what_an_engine_does_not_score_is_not_planned_for_it(tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text("parts: [{name: a, rule: exact}]")
    request = ServiceRequest(None, reward=RewardRequest(str(rules), engine="vllm"))
    with pytest.raises(UsageError, match=r"--reward-engine vllm: .*combines parts"):
        plan_service(request, Machine(hardware_of("rtx-4090")), Knowledge())


@pytest.mark.parametrize(
    ("gpu", "model", "replicas"),
    [("rtx-4090:2", "Qwen/Qwen3-0.6B", None), ("rtx-4090:3", "Qwen/Qwen3-0.6B", 2), ("rtx-4090", None, None)],
)
def test_a_model_that_is_yet_to_be_trained_is_planned_as_a_scorer(
    gpu: str, model: str | None, replicas: int | None
) -> None:
    request = ServiceRequest(model, reward=RewardRequest("Qwen/Qwen3-0.6B"), replicas=replicas)
    reward = plan_service(request, Machine(hardware_of(gpu)), Knowledge()).reward
    assert reward is not None
    assert (reward.whole.kv_cache_tokens, reward.whole.workload.max_model_len) == (0, 8192)
    assert any("planned as if it had one" in note for note in reward.whole.notes)


def test_two_plans_of_a_judge_are_one() -> None:
    request = ServiceRequest(None, reward=RewardRequest("demo", settings=RewardSettings(judge="pairwise")))
    machine = Machine(hardware_of("none"))
    first, second = (plan_service(request, machine, Knowledge()) for _ in range(2))
    assert first.to_json() == second.to_json()
    assert first.reward is not None and first.reward.whole.model.id == "demo-judge"
