"""What bitsandbytes leaves of experts in 16 bit, and what a CPU makes of them all the same."""

from __future__ import annotations

import pytest

from qserve.core.hardware import Hardware, parse_gpu
from qserve.hub import resolve
from qserve.planner import Plan, make_plan, plan_request
from qserve.units import GIB

MODEL = "Qwen/Qwen3-30B-A3B"


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def plan_for(quant: str, gpu: str = "", dtype: str | None = None) -> Plan:
    machine = Hardware(parse_gpu(gpu) if gpu else (), 128 * GIB, 120 * GIB, 16)
    return make_plan(resolve(MODEL), machine, plan_request(engine="transformers", quant=quant, dtype=dtype))


@pytest.mark.parametrize(("quant", "low", "high"), [("bnb-nf4", 16, 19), ("bnb-int8", 29, 32), ("bf16", 56, 60)])
def test_a_cpu_holds_experts_as_small_as_other_layers(quant: str, low: float, high: float) -> None:
    plan = plan_for(quant)
    assert low < plan.devices[0].weights_bytes / GIB < high
    assert not any("1849" in note for note in plan.notes)


def test_elsewhere_they_stay_in_16_bit_and_the_plan_says_so() -> None:
    for plan in (plan_for("bnb-nf4", gpu="h100"), plan_for("bnb-nf4", dtype="float32")):
        assert plan.devices[0].weights_bytes / GIB > 50
        assert any("1849" in note for note in plan.notes)
