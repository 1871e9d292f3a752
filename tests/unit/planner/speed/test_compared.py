"""Planned latency beside measured: the same requests, simulated as they arrived."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from qserve.planner.speed.calibration import CorrectedSteps, StepFactors
from qserve.planner.speed.compared import compared
from qserve.planner.speed.estimate import Replica
from qserve.planner.speed.load import Load
from qserve.planner.speed.served import ServedRequest
from qserve.planner.speed.simulate import simulate
from qserve.planner.speed.simulated import Limits
from qserve.planner.speed.terms.card import CardSpeed
from qserve.planner.speed.terms.engine_costs import EngineCosts
from tests.unit.planner.speed.as_served import served_of

LIMITS = Limits(8, 2048, 100_000)
CARD = CardSpeed("a card", 1e12, {"bf16": 1e14}, {}, like="", links={1: (0.0, 1.0)})

COSTS = EngineCosts("test", 0, 0, 0, 0, intake_ms=1.0)


@dataclass(frozen=True)
class Steps:
    """10 ms a step, half a millisecond a token of a prompt."""

    costs: EngineCosts = COSTS

    def decode_s(self, batch: int, context: float) -> float:
        return 0.010

    def mixed_s(self, batch: int, context: float, chunks: list[tuple[int, int]]) -> float:
        return 0.0005 * sum(new for new, _ in chunks)


REPLICA = Replica(Steps(), LIMITS, CARD, "vllm")


def served(load: Load, factor: float = 1.0) -> list[ServedRequest]:
    factors = StepFactors(((1, factor),), ((1, factor),), factor)
    return served_of(simulate(CorrectedSteps(Steps(), factors), load, LIMITS).finished)


def test_a_server_that_keeps_its_plan_differs_by_nothing() -> None:
    found = compared(REPLICA, served(Load(100, 20, concurrency=4, num_prompts=12)))
    assert found is not None
    assert found.num_requests == 12
    assert found.ttft_ms.difference == pytest.approx(0, abs=0.02)
    assert found.tpot_ms.difference == pytest.approx(0, abs=0.02)
    assert found.tpot_ms.low < found.tpot_ms.planned_mean < found.tpot_ms.high


def test_answers_that_were_sent_at_once_do_not_count_for_the_time_per_token() -> None:
    """A short answer's tokens may come together: its TPOT would be nothing."""
    apart = served(Load(100, 20, concurrency=1, num_prompts=5))
    at_once = [replace(one, at_s=one.at_s + 1000, ttft_s=one.e2e_s) for one in apart]
    found, plain = compared(REPLICA, apart + at_once), compared(REPLICA, apart)
    assert found is not None and plain is not None and found.num_requests == 10
    assert found.tpot_ms.measured_mean == pytest.approx(plain.tpot_ms.measured_mean)
    alone = compared(REPLICA, at_once)
    assert alone is not None and alone.tpot_ms is None and "tpot_ms" not in alone.to_json()


def test_a_server_of_half_the_speed_differs_by_its_double() -> None:
    found = compared(REPLICA, served(Load(100, 20, concurrency=1, num_prompts=5), factor=2.0))
    assert found is not None
    assert (found.ttft_ms.difference, found.tpot_ms.difference) == pytest.approx((1.0, 1.0), abs=0.05)
    told = found.to_json()
    assert told["tpot_ms"]["measured_mean"] == pytest.approx(20.0, rel=0.02)
    assert told["learned_from"] is None


def test_answers_of_one_token_and_none_tell_nothing() -> None:
    assert compared(REPLICA, []) is None
    assert compared(REPLICA, [ServedRequest(0.0, 100, 1, 0.05, 0.05)]) is None
