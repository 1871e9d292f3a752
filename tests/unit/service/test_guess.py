"""A model whose packing is a guess: the larger weights decide, and where only the smaller fit the plan says so."""

from __future__ import annotations

import json
from typing import Literal

import pytest

from qserve.errors import DoesNotFit
from qserve.planner import PlanRequest
from qserve.planner.engine import plan_request
from qserve.planner.plan import Plan
from qserve.service.knowledge import Knowledge
from qserve.service.machine import Machine, hardware_of
from qserve.service.plan import ServicePlan, plan_service
from qserve.service.request import ServiceRequest
from qserve.terminal.service import service_text
from qserve.ui.views.plan import plan_view

MODEL = "someone/Qwen3.6-27B-NVFP4"


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def service_of(model: str, gpu: str, plan: PlanRequest | None = None) -> ServicePlan:
    return plan_service(ServiceRequest(model, plan=plan or PlanRequest()), Machine(hardware_of(gpu)), Knowledge())


def plan_of(model: str, gpu: str, plan: PlanRequest | None = None) -> Plan:
    chat = service_of(model, gpu, plan).chat
    assert chat is not None
    return chat.whole


def test_where_both_fit_the_larger_is_the_plan_and_the_band_is_both() -> None:
    plan = plan_of(MODEL, "l40s")
    assert plan.fits and not plan.may_fit
    weights = next(term for term in plan.devices[0].terms if term.column == "weights")
    assert weights.high_bytes >= weights.num_bytes > 1.3 * weights.low_bytes
    assert "with the smaller ones the KV cache holds" in plan.guess
    assert plan.speed is not None
    assert plan.speed["tpot_ms"]["low"] < 0.7 * plan.speed["tpot_ms"]["mean"]


def test_where_the_smaller_alone_fits_it_may_fit() -> None:
    plan = plan_of(MODEL, "rtx-4090")
    assert not plan.fits and plan.may_fit
    assert plan.why_not is not None
    assert "It may fit: it does if its weights are 18.74 GiB a device (every linear layer packed)" in plan.why_not
    assert "are missing if they are 26.13 GiB (linear attention in 16 bit)" in plan.why_not
    assert plan.kv_cache_tokens and plan.devices[0].free_bytes >= 0
    assert plan.short_bytes > 0
    assert plan.suggestions and not plan.engine_args
    assert plan.speed is not None
    assert plan.speed["tpot_ms"]["high"] > 2 * plan.speed["tpot_ms"]["mean"]
    text = service_text([plan], "")
    assert text.startswith(" may fit ")
    assert "A guess by its name" in text and "What would fit in any case:" in text
    assert "max_model_len" in text


def test_what_may_fit_is_not_started() -> None:
    with pytest.raises(DoesNotFit, match="It may fit"):
        service_of(MODEL, "rtx-4090").check_fits()


def test_where_none_fits_it_is_refused() -> None:
    plan = plan_of(MODEL, "rtx-5070-ti")
    assert not plan.fits and not plan.may_fit
    assert "missing on" in str(plan.why_not)
    assert plan.guess


def test_the_verdict_stands_in_the_page_and_the_json() -> None:
    data = plan_of(MODEL, "rtx-4090").to_json()
    assert data["may_fit"] is True and data["guess"]
    assert "It may fit" in plan_view(data, "en") and "A guess by its name" in plan_view(data, "en")
    assert "可能放得下" in plan_view(data, "zh-CN") and "按名称猜测" in plan_view(data, "zh-CN")
    assert Plan.from_json(json.loads(json.dumps(data))).may_fit


def test_a_plan_that_is_no_guess_says_nothing_of_it() -> None:
    data = plan_of("Qwen/Qwen3-8B", "l40s").to_json()
    assert not {"may_fit", "guess"} & set(data)


def test_a_27b_of_unsloth_fits_the_card_on_which_it_ran() -> None:
    """Public starts of its revision 890bdef7 on an RTX 5090, 26.4 GB of files."""
    fixed = plan_request(max_model_len=16384, kv_cache_dtype="fp8", language_model_only=True)
    assert plan_of("unsloth/Qwen3.6-27B-NVFP4", "rtx-5090", fixed).fits


@pytest.mark.parametrize(("gpu", "replicas"), [("rtx-4090:2", 2), ("rtx-4090:4", 4), ("rtx-4090", "auto")])
def test_replicas_may_fit_too(gpu: str, replicas: int | Literal["auto"]) -> None:
    request = ServiceRequest(MODEL, replicas=replicas)
    service = plan_service(request, Machine(hardware_of(gpu)), Knowledge())
    assert service.chat is not None
    plan, alone = service.chat.whole, plan_of(MODEL, "rtx-4090")
    assert plan.may_fit and not plan.fits
    assert plan.short_bytes == pytest.approx(alone.short_bytes, rel=0.05)
    assert plan.why_not is not None and "(linear attention in 16 bit)" in plan.why_not
    assert len(service.chat.replicas) == (1 if replicas == "auto" else replicas)
    assert plan.guess and not plan.engine_args
    assert plan.to_json()["may_fit"] is True
    with pytest.raises(DoesNotFit, match="It may fit"):
        service.check_fits()


def test_replicas_of_which_none_fits_are_refused_by_the_larger_weights() -> None:
    request = ServiceRequest(MODEL, replicas=2)
    with pytest.raises(DoesNotFit, match=r"--replicas 2: each replica has .* too little") as refused:
        plan_service(request, Machine(hardware_of("rtx-5070-ti:2")), Knowledge())
    assert refused.value.short_bytes > 0
