"""What a run teaches: factors with which the simulation takes what the requests took; and the CPU as a card."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from qserve.core.hardware import CpuFeatures, Device, Hardware
from qserve.core.model_spec import ModelSpec
from qserve.hub.bundled import bundled_config
from qserve.planner.speed.learned import (
    CorrectedSteps,
    Measured,
    ResidualKey,
    SpeedResidual,
    StepFactors,
    residual_of,
)  # fmt: skip
from qserve.planner.speed.load import Load
from qserve.planner.speed.served import ServedRequest, replayed, served_of
from qserve.planner.speed.simulate import Limits, simulate
from qserve.planner.speed.step import StepTimes
from qserve.planner.speed.terms.cpu import CpuRates, assumed_rates, cpu_card
from qserve.planner.speed.terms.engine_costs import EngineCosts, engine_costs
from qserve.planner.speed.terms.formats import weight_format
from qserve.planner.speed.terms.network import rank_network

LIMITS = Limits(16, 2048, 100_000)
COSTS = EngineCosts("test", 0, 0, 0, 0, intake_ms=1.0)
KEY = ResidualKey("an engine", "1.0", "a card", "a/model", "bf16", 1)


@dataclass(frozen=True)
class Linear:
    """5 ms a step and 0.2 more a sequence; 0.5 ms a token of a prompt."""

    costs: EngineCosts = COSTS

    def decode_s(self, batch: int, context: float) -> float:
        return 0.005 + 0.0002 * batch

    def mixed_s(self, batch: int, context: float, chunks: list[tuple[int, int]]) -> float:
        return 0.0005 * sum(new for new, _ in chunks)


def served_by(factors: StepFactors, *loads: Load) -> list[ServedRequest]:
    """What a machine that is off by `factors` makes of one load after the other."""
    served: list[ServedRequest] = []
    for load in loads:
        start = max((one.ends_s for one in served), default=-9.0) + 10.0
        found = served_of(simulate(CorrectedSteps(Linear(), factors), load, LIMITS).finished)
        served += [replace(one, at_s=one.at_s + start) for one in found]
    return served


ONE, FOUR = Load(300, 40, concurrency=1, num_prompts=4), Load(300, 40, concurrency=4, num_prompts=12)


@pytest.mark.parametrize("load", [Load(100, 40, rps=2.0, num_prompts=40), FOUR])
def test_a_slower_machine_is_found_to_be_slower_by_so_much(load: Load) -> None:
    found = residual_of(Linear(), LIMITS, served_by(StepFactors(1.6, 1.6, 1.3), load))
    assert found is not None
    assert (found.decode, found.prefill) == pytest.approx((1.6, 1.3), rel=0.06)


def test_several_loads_tell_what_further_streams_add() -> None:
    sixteen = Load(300, 40, concurrency=16, num_prompts=32)
    wanted = StepFactors(decode=1.1, growth=3.0, prefill=0.8)
    found = residual_of(Linear(), LIMITS, served_by(wanted, ONE, FOUR, sixteen))
    assert found is not None
    for load in (ONE, FOUR, sixteen):
        steps = [simulate(CorrectedSteps(Linear(), factors), load, LIMITS) for factors in (found, wanted)]
        planned, measured = (sum(one.e2e_s for one in run.finished) for run in steps)
        assert planned == pytest.approx(measured, rel=0.03)
    assert found.growth > 2 * found.decode


def test_too_few_requests_and_factors_beyond_belief_teach_nothing() -> None:
    served = served_by(StepFactors(decode=50.0, growth=50.0), ONE)
    assert residual_of(Linear(), LIMITS, served[:2]) is None
    assert residual_of(Linear(), LIMITS, served) is None


def test_a_closed_loop_is_replayed_as_one_on_a_machine_of_another_speed() -> None:
    served = served_by(StepFactors(), FOUR)
    slow = CorrectedSteps(Linear(), StepFactors(2.0, 2.0, 2.0))
    pairs = list(replayed(slow, LIMITS, served))
    assert len(pairs) == len(served)
    for one, planned in pairs:
        assert (one.input_tokens, one.output_tokens) == (planned.input_tokens, planned.output_tokens)
        assert planned.e2e_s == pytest.approx(2 * one.e2e_s, rel=0.05)


def test_the_run_of_the_same_server_counts() -> None:
    mine = SpeedResidual(KEY, StepFactors(1.2), 10, "b")
    other = SpeedResidual(ResidualKey("an engine", "2.0", "a card", "a/model", "bf16", 1), StepFactors(3.0), 10, "c")
    assert Measured(residuals=(other, mine)).residual_for(KEY) is mine
    assert Measured(residuals=(other,)).residual_for(KEY) is None


def test_a_cpus_step_is_what_the_throughput_page_measured() -> None:
    """docs/results/throughput.md: 44.4 GB/s and 880 GFLOP/s; 56, 66 and 105 ms a step, within a fifth."""
    config = bundled_config("Qwen/Qwen3-0.6B")
    assert config is not None
    network = rank_network(ModelSpec.from_config(config, "Qwen/Qwen3-0.6B"), weight_format("bf16", ()))
    card = cpu_card(Device("a CPU", "cpu", 1 << 34), CpuRates(44.4e9, 880e9, 2))
    steps = StepTimes(card, network, engine_costs("transformers-cpu"))
    for batch, context, seconds in ((1, 144, 0.056), (8, 144, 0.066), (8, 816, 0.105)):
        assert steps.decode_s(batch, context) == pytest.approx(seconds, rel=0.2)


def test_an_unmeasured_cpu_says_so() -> None:
    hardware = Hardware((), 1 << 35, 1 << 34, 8, CpuFeatures("a CPU", frozenset({"avx512_bf16"})))
    rates = assumed_rates(hardware)
    assert not rates.is_measured
    assert cpu_card(hardware.cpu_device, rates).like
