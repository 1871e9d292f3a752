"""From the run store to factors on the next plan's steps, over a CPU whose rates moved between two loads."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from qserve.hub import resolve
from qserve.planner import PlanRequest, make_plan
from qserve.planner.speed.calibration import CorrectedSteps, Measured, StepFactors
from qserve.planner.speed.estimate import estimate_speed, replica_of
from qserve.planner.speed.load import Load
from qserve.planner.speed.simulate import simulate
from qserve.planner.speed.simulated import Finished
from qserve.planner.speed.terms.cpu import CpuRates
from qserve.runs.writer import RequestRow, RunWriter
from qserve.service.machine import hardware_of
from qserve.service.measured_speed import keep_rates, measured_speed
from tests.unit.runs.kept import GOOD, writer

BEGAN = 1_795_300_000.0
FAST = CpuRates(40e9, 800e9, 2, linear_ps=((1, 80.0), (256, 800.0)), at_unix_s=BEGAN)
SLOW = CpuRates(20e9, 400e9, 2, linear_ps=((1, 160.0), (256, 1600.0)), at_unix_s=BEGAN + 600)


def keep(run: RunWriter, finished: Iterable[Finished], began_s: float) -> None:
    """Write the simulated answers down as requests of a run that began then."""
    for one in finished:
        began_ms, e2e_us, ttft_us = 1000 * (began_s + one.arrival_s), 1e6 * one.e2e_s, 1e6 * one.ttft_s
        tokens = one.input_tokens, one.output_tokens, one.output_tokens
        name = f"req-{one.place}"
        run.request(RequestRow(GOOD, round(began_ms), round(e2e_us), 0, round(ttft_us), *tokens, name))


def test_a_run_teaches_what_it_took_beyond_what_the_cpu_could_do_then(tmp_path: Path) -> None:
    hardware, checkpoint = hardware_of("none"), resolve("demo")
    plan = make_plan(checkpoint, hardware, PlanRequest(engine="transformers"))
    run = writer(tmp_path)
    run.plan("chat", ("demo",), plan.to_json())
    for rates, load in ((FAST, Load(60, 40, concurrency=1)), (SLOW, Load(60, 40, concurrency=4))):
        keep_rates(tmp_path, rates)
        replica = replica_of(plan, checkpoint.spec, hardware.cpu_device, Measured(rates))
        steps = CorrectedSteps(replica.steps, StepFactors(((1, 1.3),), ((1, 1.2),)))
        keep(run, simulate(steps, replace(load, jitter=0.1), replica.limits).finished, rates.at_unix_s)
    run.close(0)
    (learned,) = measured_speed(tmp_path, checkpoint, hardware, learns=True).residuals
    assert (learned.run, learned.num_requests) == ("20261121-120000-1", 43)
    assert [size for size, _ in learned.factors.decode] == [1, 4]
    assert all(factor == pytest.approx(1.3, rel=0.06) for _, factor in learned.factors.decode), learned.factors
    assert measured_speed(tmp_path, checkpoint, hardware, learns=False).residuals == ()


def a_run(folder: Path, name: str, slower: float, others: float) -> None:
    """Of a service whose steps take `slower` times what is planned, while others have so much of the processors."""
    hardware, checkpoint = hardware_of("none"), resolve("demo")
    plan = make_plan(checkpoint, hardware, PlanRequest(engine="transformers"))
    run = writer(folder, name)
    run.plan("chat", ("demo",), plan.to_json())
    replica = replica_of(plan, checkpoint.spec, hardware.cpu_device, Measured(FAST))
    steps = CorrectedSteps(replica.steps, StepFactors(((1, slower),), ((1, slower),)))
    keep(run, simulate(steps, Load(60, 40, concurrency=1, num_prompts=8), replica.limits).finished, BEGAN)
    run.event("chat", "latency", {"others_share": others})
    run.close(0)


def test_the_newest_run_that_nothing_disturbed_teaches(tmp_path: Path) -> None:
    keep_rates(tmp_path, FAST)
    a_run(tmp_path, "20261121-120000-1", 1.5, others=0.02)
    a_run(tmp_path, "20261121-130000-1", 1.3, others=0.03)
    a_run(tmp_path, "20261121-140000-1", 2.6, others=0.6)
    hardware, checkpoint = hardware_of("none"), resolve("demo")
    (learned,) = measured_speed(tmp_path, checkpoint, hardware, learns=True).residuals
    assert (learned.run, learned.others) == ("20261121-130000-1", 0.03)
    assert learned.factors.decode[0][1] == pytest.approx(1.3, rel=0.05)


def test_where_each_run_was_disturbed_the_least_counts_and_the_plan_says_so(tmp_path: Path) -> None:
    keep_rates(tmp_path, FAST)
    a_run(tmp_path, "20261121-120000-1", 1.3, others=0.3)
    a_run(tmp_path, "20261121-130000-1", 2.6, others=0.6)
    hardware, checkpoint = hardware_of("none"), resolve("demo")
    known = measured_speed(tmp_path, checkpoint, hardware, learns=True)
    assert [one.run for one in known.residuals] == ["20261121-120000-1"]
    assert 1.0 < known.residuals[0].factors.decode[0][1] < 1.2
    plan = make_plan(checkpoint, hardware, PlanRequest(engine="transformers"))
    notes = estimate_speed(plan, checkpoint.spec, hardware.cpu_device, None, measured=known).notes
    assert any("Other programs took 30 % of the processors in that run" in one for one in notes)
