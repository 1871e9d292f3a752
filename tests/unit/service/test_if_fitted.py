"""A plan that does not fit tells the speed that it would have."""

from __future__ import annotations

from typing import Any

import pytest

from qserve.planner import PlanRequest
from qserve.planner.engine import plan_request
from qserve.planner.plan import Plan
from qserve.planner.speed.figures import Targets
from qserve.planner.speed.load import Load
from qserve.service.knowledge import Knowledge
from qserve.service.load import SpeedRequest
from qserve.service.machine import Machine, hardware_of
from qserve.service.plan import plan_service
from qserve.service.request import ServiceRequest
from qserve.terminal.service import service_text
from qserve.ui.views.plan import plan_view


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def planned(
    gpu: str, plan: PlanRequest | None = None, load: Load | None = None, model: str = "Qwen/Qwen3-32B", **more: Any
) -> Plan:
    speed = SpeedRequest(load, more.pop("targets", Targets()))
    request = ServiceRequest(model, plan or plan_request(quant="bf16"), speed=speed, **more)
    service = plan_service(request, Machine(hardware_of(gpu)), Knowledge())
    assert service.chat is not None
    return service.chat.whole


def figure(plan: Plan, name: str, key: str = "mean") -> float:
    assert plan.speed is not None
    value: float = plan.speed[name][key]
    return value


@pytest.mark.parametrize("engine", ["vllm", "transformers"])
@pytest.mark.parametrize("load", [None, Load(concurrency=16), Load(rps=0.2), Load(burst=8)])
def test_it_is_told_for_every_kind_of_load_with_its_band(engine: str, load: Load | None) -> None:
    plan = planned("rtx-4090", plan_request(quant="bf16", engine=engine), load)
    assert not plan.fits and plan.speed is not None and plan.speed["if_fitted"] is True
    for name in ("ttft_ms", "tpot_ms"):
        assert figure(plan, name, "low") < figure(plan, name) < figure(plan, name, "high")
    # 61 GiB of weights at 1,008 GB/s.
    assert figure(plan, "tpot_ms") > 65
    assert plan.speed["preemptions"] == 0, "the cache that it lacks is thought to be there"
    assert "price_per_hour" not in plan.speed, "these cards do not hold it"


def test_it_is_the_speed_of_the_card_and_not_of_its_memory() -> None:
    """Of 48 GiB instead of 24 on the same chip: where the plan fits, it has what was told before."""
    fixed = plan_request(quant="bf16", max_model_len=4096, max_num_seqs=16, max_num_batched_tokens=2048)
    load = Load(concurrency=8)
    small, large = (planned(gpu, fixed, load, model="Qwen/Qwen3-14B") for gpu in ("rtx-4090", "rtx-4090-48gb"))
    assert not small.fits and large.fits
    for name in ("tpot_ms", "ttft_ms"):
        assert figure(small, name) == pytest.approx(figure(large, name), rel=0.03)


@pytest.mark.parametrize("lengths", [(1000, 300), (3000, 1000), (100, 3900), (4000, 1)])
@pytest.mark.parametrize("arrivals", [{"concurrency": 16}, {"burst": 16}, {"users": 12, "think_s": 0.5}])
def test_its_cache_makes_no_request_wait(lengths: tuple[int, int], arrivals: dict[str, int | float]) -> None:
    """As on the same chip with memory for ten times as many, though lengths vary and a hundredth is kept free."""
    fixed = plan_request(quant="bf16", max_model_len=4096, max_num_seqs=16, max_num_batched_tokens=2048)
    load = Load(*lengths, **arrivals)  # type: ignore[arg-type]
    small, large = (planned(gpu, fixed, load, "Qwen/Qwen3-14B") for gpu in ("rtx-4090", "like=rtx-4090,memory=300GiB"))
    assert not small.fits and large.fits
    for name in ("tpot_ms", "ttft_ms"):
        assert figure(small, name) == pytest.approx(figure(large, name), rel=1e-6)
    assert small.speed is not None and small.speed["preemptions"] == 0


def test_limits_are_those_asked_for_or_the_engines_own() -> None:
    """A plan that does not fit was tried with one sequence at a time."""
    refused = planned("rtx-4090", load=Load(concurrency=32))
    assert refused.workload.max_num_seqs == 1
    one = planned("rtx-4090", plan_request(quant="bf16", max_num_seqs=1), Load(concurrency=32))
    assert figure(refused, "output_tokens_per_s", "value") > 10 * figure(one, "output_tokens_per_s", "value")


@pytest.mark.parametrize("load", [None, Load(concurrency=8), Load(rps=0.5), Load(burst=8)])
@pytest.mark.parametrize("replicas", [2, 4])
def test_replicas_share_the_cards_that_the_plan_takes_for_one(load: Load | None, replicas: int) -> None:
    """As fast as so many servers with fewer cards each, of which one was planned on them."""
    told = planned(f"rtx-3060:{replicas}", load=load, replicas=replicas)
    assert not told.fits and told.placement.num_ranks == replicas, "the nearest plan takes all cards"
    assert told.speed is not None and told.speed["replicas"] == replicas
    assert f"Counted for {replicas} replicas, cards of each: 1" in told.speed["notes"]
    alone = planned(f"rtx-3060:{replicas}", load=load)
    assert figure(told, "tpot_ms") > 1.2 * figure(alone, "tpot_ms"), "a card alone reads all weights"
    if load is not None and load.concurrency:
        one = planned("rtx-3060", load=load.shared_by(replicas))
        assert figure(told, "tpot_ms") == pytest.approx(figure(one, "tpot_ms"), rel=0.05)


@pytest.mark.parametrize(
    ("gpu", "fixed", "note"),
    [
        ("rtx-4090", {}, "Counted for 1 of 2 replicas, cards of each: 1; there are no cards for more"),
        ("rtx-4090:2", {"tensor_parallel_size": 2}, "Counted for 1 of 2 replicas, cards of each: 2; there are no"),
        ("rtx-4090:2", {"tensor_parallel_size": 1}, "Counted for 2 replicas, cards of each: 1"),
    ],
)
def test_replicas_that_there_are_no_cards_for_are_not_counted_and_that_is_told(
    gpu: str, fixed: dict[str, Any], note: str
) -> None:
    told = planned(gpu, plan_request(quant="bf16", **fixed), Load(concurrency=8), replicas=2).speed
    assert told is not None and any(one.startswith(note) for one in told["notes"])
    assert told["replicas"] == (2 if "for 2 replicas" in note else 1)


def test_targets_are_told_and_a_plan_that_fits_is_as_it_was() -> None:
    missed = planned("rtx-4090", load=Load(rps=2), targets=Targets(ttft_ms=100)).speed
    assert missed is not None and missed["targets"]["met"] is False and missed["alternatives"] == []
    fits = planned("h100", load=Load(rps=0.1)).speed
    assert fits is not None and "if_fitted" not in fits and fits["targets"] is None


def test_the_page_and_the_terminal_say_if_and_name_what_fits() -> None:
    plan = planned("rtx-4090")
    text = service_text([plan], "")
    assert "Speed if it fitted, one request at a time" in text
    assert text.index("Speed if it fitted") < text.index("What would fit:"), "the way out is the last thing on screen"
    page = plan_view(plan.to_json(), "en")
    assert page.index("What would fit") < page.index("Speed if it fitted")
    assert "若能放下时的速度" in plan_view(plan.to_json(), "zh-CN")
    fits = planned("h100")
    assert "if it fitted" not in service_text([fits], "") + plan_view(fits.to_json(), "en")
