"""What is learned of requests that come together, whatever steps they shared, and of rounds that were disturbed."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from qserve.planner.speed.calibrate import residual_of
from qserve.planner.speed.calibration import CorrectedSteps, StepFactors
from qserve.planner.speed.load import Arrival, Load
from qserve.planner.speed.served import ServedRequest, replayed
from qserve.planner.speed.simulate import simulate
from qserve.planner.speed.simulated import Limits
from qserve.planner.speed.terms.engine_costs import EngineCosts
from tests.unit.planner.speed.as_served import served_of

LIMITS = Limits(16, 2048, 100_000)
COSTS = EngineCosts("a CPU", 0, 0, 0, 0, intake_ms=1.0, starts_alone=True)


@dataclass(frozen=True)
class SlowPrompts:
    """40 ms a step, and 2.5 ms a token of a prompt: which prompts share a step decides what tokens take."""

    costs: EngineCosts = COSTS

    def decode_s(self, batch: int, context: float) -> float:
        return 0.04

    def mixed_s(self, batch: int, context: float, chunks: list[tuple[int, int]]) -> float:
        return 0.04 + 0.0025 * sum(new for new, _ in chunks)


def burst(in_first_step: int, start_s: float, slower: float = 1.0) -> list[ServedRequest]:
    """Four prompts within 3 ms, so many of which an idle engine had in its first step; the second one came too late."""
    chosen = {0, 2, 3, 1} if in_first_step == 4 else {0, 2} if in_first_step == 2 else {0}
    order = sorted(range(4), key=lambda index: (index not in chosen, index))
    trace = tuple(Arrival(0.001 * index, 64, 16, beside=index in chosen - {0}) for index in order)
    machine = CorrectedSteps(SlowPrompts(), StepFactors(((1, slower),), ((1, slower),)))
    served = served_of(simulate(machine, Load(trace=trace), LIMITS).finished)
    return sorted((replace(one, at_s=one.at_s + start_s) for one in served), key=lambda one: one.at_s)


@pytest.mark.parametrize("in_first_step", [1, 2, 4])
def test_requests_are_simulated_in_the_steps_that_they_shared(in_first_step: int) -> None:
    served = burst(in_first_step, 100.0)
    for one, simulated in replayed(SlowPrompts(), LIMITS, served):
        assert simulated.ttft_s == pytest.approx(one.ttft_s)
        assert simulated.tpot_s == pytest.approx(one.tpot_s)


@pytest.mark.parametrize("late_s", [0.0, 0.002])
def test_who_was_computed_first_is_told_by_first_tokens(late_s: float) -> None:
    """Not by the gateway's clock, for which requests that come together have another order than for the engine."""
    first, *others = sorted(burst(1, 100.0), key=lambda one: one.ttft_s)
    later = replace(first, at_s=others[0].at_s + late_s, ttft_s=first.ttft_s - late_s, e2e_s=first.e2e_s - late_s)
    pairs = list(replayed(SlowPrompts(), LIMITS, [*others, later]))
    for one, simulated in pairs:
        assert simulated.ttft_s == pytest.approx(one.ttft_s, abs=0.004)
        assert simulated.tpot_s == pytest.approx(one.tpot_s, rel=0.01)


def test_a_closed_loop_takes_replayed_what_it_took() -> None:
    """Answers end one by one, so that the order in which they are kept is not that in which they came."""
    lengths = tuple((64, 12 + 7 * place % 24) for place in range(12))
    load = Load(64, 24, concurrency=4, num_prompts=12, lengths=lengths)
    run = simulate(SlowPrompts(), load, LIMITS)
    pairs = list(replayed(SlowPrompts(), LIMITS, served_of(run.finished)))
    assert len(pairs) == 12
    for one, simulated in pairs:
        assert (simulated.ttft_s, simulated.tpot_s) == pytest.approx((one.ttft_s, one.tpot_s))


def test_steps_are_not_slow_because_prompts_fell_beside_them() -> None:
    served = [one for turn in range(3) for one in burst(2, 60.0 * turn)]
    found = residual_of([(SlowPrompts(), served)], LIMITS)
    assert found is not None
    assert all(factor == pytest.approx(1.0, rel=0.01) for _, factor in (*found.decode, *found.prefill))


def test_a_round_in_which_others_computed_is_outvoted() -> None:
    parts = [(SlowPrompts(), burst(1, 60.0 * turn, slower=3.0 if turn == 1 else 1.2)) for turn in range(3)]
    found = residual_of(parts, LIMITS)
    assert found is not None
    assert all(factor == pytest.approx(1.2, rel=0.03) for _, factor in (*found.decode, *found.prefill))


def test_rounds_that_disagree_teach_less_than_rounds_that_agree() -> None:
    def learned(*slower: float) -> float:
        parts = [(SlowPrompts(), burst(1, 60.0 * turn, one)) for turn, one in enumerate(slower)]
        found = residual_of(parts, LIMITS)
        assert found is not None
        return found.decode[0][1]

    assert learned(1.1, 1.1, 1.1, 1.1) == pytest.approx(1.1, rel=0.005)
    assert 1.02 < learned(0.9, 1.0, 1.2, 1.3) < 1.08
    # Far off is far off, however the machine moves.
    assert learned(2.0, 2.2, 2.6, 2.8) == pytest.approx(2.4, rel=0.05)


def test_a_run_in_which_others_computed_teaches_less() -> None:
    """A machine of which others took half may have been slowed down twofold by them, or not at all."""

    def learned(slower: float, others: float) -> float:
        found = residual_of([(SlowPrompts(), burst(1, 60.0 * turn, slower)) for turn in range(3)], LIMITS, others)
        assert found is not None
        return found.decode[0][1]

    assert learned(1.3, 0.0) == pytest.approx(1.3, rel=0.01)
    assert 1.0 < learned(1.3, 0.5) < 1.06
    # Off by four times it is in any case, and most of that is believed.
    assert 2.5 < learned(4.0, 0.5) < 4.0


def test_a_load_that_was_seen_once_is_believed_by_what_its_requests_lie_apart() -> None:
    def learned(*slower: float) -> float:
        """One stream, each request of which met a machine of its own."""
        served: list[ServedRequest] = []
        for one in slower:
            machine = CorrectedSteps(SlowPrompts(), StepFactors(((1, one),), ((1, one),)))
            (found,) = served_of(simulate(machine, Load(64, 16, num_prompts=1), LIMITS).finished)
            served.append(replace(found, at_s=served[-1].ends_s + 0.01 if served else 0.0))
        factors = residual_of([(SlowPrompts(), served)], LIMITS)
        assert factors is not None
        return factors.decode[0][1]

    assert learned(1.2, 1.2, 1.2, 1.2, 1.2, 1.2) == pytest.approx(1.2, rel=0.005)
    assert learned(1.0, 1.05, 1.15, 1.25, 1.35, 1.4) < 1.16
    assert 1.0 < learned(0.8, 0.9, 1.15, 1.25, 1.5, 1.6) < 1.1
