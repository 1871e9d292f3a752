"""Many models on one budget: what each is planned with, on which card, and what can never be loaded."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from qserve.errors import DoesNotFit
from qserve.planner import PlanRequest
from qserve.planner.residency.footprint import RAM
from qserve.service.knowledge import Knowledge
from qserve.service.machine import Machine, hardware_of
from qserve.service.request import RewardRequest, ServiceRequest
from qserve.service.residents import (
    STANDBY_BYTES,
    Keeping,
    ResidentRequest,
    ResidentsPlan,
    ResidentsRequest,
    plan_residents,
)
from qserve.units import GIB, MIB


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def planned(folder: Path, gpu: str, *models: ResidentRequest, most_bytes: int | None = None) -> ResidentsPlan:
    request = ResidentsRequest(models, most_bytes=most_bytes)
    return plan_residents(request, Machine(hardware_of(gpu)), Knowledge(), folder)


def folder(parent: Path) -> Path:
    made = parent / "other"
    made.mkdir()
    return made


def chat(model: str, keeping: Keeping | None = None, **options: object) -> ResidentRequest:
    plan = PlanRequest(**options)  # type: ignore[arg-type]
    return ResidentRequest(ServiceRequest(model, plan), keeping or Keeping())


def test_a_model_takes_a_cache_for_its_own_requests_and_not_the_card(tmp_path: Path) -> None:
    plan = planned(tmp_path, "rtx-4090", chat("Qwen/Qwen3-0.6B"), chat("Qwen/Qwen3-4B", max_model_len=8192))
    small, large = plan.models
    assert small.plan.kv_cache_tokens >= small.plan.workload.max_model_len
    assert large.plan.workload.max_model_len == 8192 and 32768 <= large.plan.kv_cache_tokens < 34000
    assert sum(small.footprint.rest.values()) < 10 * GIB, "it does not take the whole card"
    assert plan.budget.short_together(plan.footprints) == 0


def test_a_cache_that_is_given_stays(tmp_path: Path) -> None:
    (one,) = planned(tmp_path, "rtx-4090", chat("Qwen/Qwen3-0.6B", kv_cache_memory_bytes=6 * GIB)).models
    assert one.plan.placement.kv_cache_memory_bytes == 6 * GIB


def test_models_that_fit_on_one_card_are_spread_and_a_large_one_takes_all(tmp_path: Path) -> None:
    models = (chat("Qwen/Qwen3-4B"), chat("Qwen/Qwen3-4B"), chat("Qwen/Qwen3-32B", max_model_len=8192))
    plan = planned(tmp_path, "h100-80gb:2", *models)
    first, second, large = plan.models
    assert {first.places, second.places} == {(0,), (1,)}
    assert [one.group for one in plan.models] == ["qwen3-4b", "qwen3-4b-2", "qwen3-32b"]
    assert set(first.footprint.rest) == {f"card {first.places[0]}"}
    assert set(large.footprint.rest) <= {"card 0", "card 1", RAM}


def test_a_reward_model_is_one_of_them(tmp_path: Path) -> None:
    reward = ResidentRequest(ServiceRequest(None, reward=RewardRequest("demo")))
    plan = planned(tmp_path, "none", chat("demo"), reward)
    assert [one.group for one in plan.models] == ["demo", "demo-2"]
    assert all(set(one.footprint.rest) == {RAM} for one in plan.models)
    assert plan.to_json()["models"][1]["plan"]["model"]["id"] == "demo"


def test_what_can_never_be_loaded_is_refused(tmp_path: Path) -> None:
    pinned = chat("demo", Keeping(is_pinned=True))
    plan = planned(tmp_path, "none", pinned, chat("demo"), most_bytes=GIB)
    with pytest.raises(DoesNotFit, match=r"demo-2 can't be loaded beside demo, which never leaves: \d.* are missing"):
        plan.check_fits()
    planned(folder(tmp_path), "none", chat("demo"), chat("demo"), most_bytes=GIB).check_fits()


def test_a_process_stands_by_where_models_take_turns_and_each_has_room_beside_it(tmp_path: Path) -> None:
    def two(most_bytes: int | None) -> ResidentsPlan:
        return planned(Path(tempfile.mkdtemp(dir=tmp_path)), "none", chat("demo"), chat("demo"), most_bytes=most_bytes)

    alone = sum(two(None).footprints[0].rest.values())
    tight, roomy = two(alone + 100 * MIB), two(alone + STANDBY_BYTES)
    assert not tight.standby and tight.budget.pools[RAM] == alone + 100 * MIB
    assert roomy.standby and roomy.budget.pools[RAM] == alone
    assert not two(3 * alone).standby, "all are there"
    assert roomy.to_json()["standby_bytes"] == STANDBY_BYTES


def test_the_budget_is_what_the_models_may_take(tmp_path: Path) -> None:
    plan = planned(tmp_path, "rtx-4090:2", chat("Qwen/Qwen3-0.6B"), most_bytes=10 * GIB)
    assert plan.budget.pools["card 0"] == plan.budget.pools["card 1"] == 10 * GIB
    free = planned(folder(tmp_path), "rtx-4090:2", chat("Qwen/Qwen3-0.6B"))
    assert free.budget.pools["card 0"] > 20 * GIB
