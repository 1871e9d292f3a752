"""A CPU's copy of the head in int8: plans of the own engine know that steps of few sequences read it first."""

from __future__ import annotations

from typing import Any

import pytest

from qserve.core.hardware import CpuFeatures, Hardware
from qserve.hub import resolve
from qserve.planner import Plan, make_plan, plan_request
from qserve.planner.speed.estimate import estimate_speed, replica_of
from qserve.planner.speed.steps.times import SHORTLIST_SHARE, StepTimes
from qserve.units import GIB

MODEL = "Qwen/Qwen3-0.6B"


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def machine(*flags: str) -> Hardware:
    return Hardware((), 32 * GIB, 24 * GIB, 2, CpuFeatures("a CPU", frozenset(flags)))


def plan_on(hardware: Hardware, **fixed: Any) -> Plan:
    return make_plan(resolve(MODEL), hardware, plan_request(**{"engine": "transformers", "quant": "bf16", **fixed}))


def steps_on(hardware: Hardware, **fixed: Any) -> StepTimes:
    steps = replica_of(plan_on(hardware, **fixed), resolve(MODEL).spec, hardware.cpu_device).steps
    assert isinstance(steps, StepTimes)
    return steps


def test_up_to_eight_sequences_read_it() -> None:
    copied, plain = steps_on(machine("avx512_vnni")), steps_on(machine())
    for sequences, share in ((1, SHORTLIST_SHARE), (8, SHORTLIST_SHARE), (9, 1.0)):
        head = plain.decode_terms(sequences, 100).lm_head
        assert copied.decode_terms(sequences, 100).lm_head == pytest.approx(share * head)
        assert plain.decode_s(sequences, 100) - copied.decode_s(sequences, 100) == pytest.approx(
            (1 - share) * head / 1e6
        )


@pytest.mark.parametrize("fixed", [{"quant": "fp32"}, {"dtype": "float32"}, {"engine": "vllm"}])
def test_what_has_no_copy_is_planned_without(fixed: dict[str, Any]) -> None:
    plan = plan_on(machine("avx512_vnni"), **fixed)
    assert plan.placement.head_copy_bytes == 0
    assert steps_on(machine("avx512_vnni"), **fixed).shortlist_rows == 0


def test_explain_says_so() -> None:
    hardware = machine("avx512_vnni")
    told = estimate_speed(plan_on(hardware), resolve(MODEL).spec, hardware.cpu_device, None).explained
    assert any(line.startswith("head: up to 8 sequences, greedy or drawn by top-k, 64 %") for line in told)
