"""The record of rounds against real engines: what is planned, learned and told of made-up machines."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from bench import speed_against_engines as benchmark
from bench.speed_rounds import Judge, Record, Round, Subject, drift_between, mean_of, table
from qserve.core.checkpoint import Checkpoint
from qserve.core.hardware import Hardware
from qserve.hub import resolve
from qserve.planner import Plan, PlanRequest, make_plan
from qserve.planner.speed.calibration import CorrectedSteps, Measured, StepFactors
from qserve.planner.speed.estimate import replica_of
from qserve.planner.speed.figures import figures_of
from qserve.planner.speed.load import Arrival, Load
from qserve.planner.speed.simulate import simulate
from qserve.planner.speed.terms.cpu import CpuRates
from tests.unit.planner.speed.as_served import served_of

SUBJECT = Subject("transformers", "demo")
LINEAR = ((1, 80.0), (4, 84.0), (16, 120.0), (256, 820.0))
RATES = CpuRates(40e9, 800e9, 2, linear_ps=LINEAR, large_ps=tuple((rows, 0.9 * ps) for rows, ps in LINEAR))


@pytest.fixture(scope="module")
def planned() -> tuple[Plan, Checkpoint]:
    checkpoint = resolve("demo")
    machine = Hardware((), 1 << 36, 1 << 36, 2)
    return make_plan(checkpoint, machine, PlanRequest(engine="transformers")), checkpoint


def a_round(planned: tuple[Plan, Checkpoint], turn: int, streams: int, slower: float, **how: object) -> Round:
    """On a machine that takes `slower` times what the plan says."""
    plan, checkpoint = planned
    replica = replica_of(plan, checkpoint.spec, Hardware((), 1 << 36, 1 << 36, 2).cpu_device, Measured(RATES))
    load = Load(64, 16, concurrency=streams, jitter=0.0, num_prompts=max(3, streams))
    run = simulate(
        CorrectedSteps(replica.steps, StepFactors(((1, slower),), ((1, slower),), slower)), load, replica.limits
    )
    found = figures_of(run, load)
    figures = {
        "ttft_ms": found.ttft_ms.mean,
        "tpot_ms": found.tpot_ms.mean,
        "output_tokens_per_s": found.output_tokens_per_s,
    }
    served = tuple(replace(one, at_s=one.at_s + 1000.0 * turn) for one in served_of(run.finished))
    one = Round(SUBJECT.engine, SUBJECT.shape, turn, load, figures, RATES, 0.01, 0.0, True, served)
    return replace(one, **how)


def recorded(path: Path, planned: tuple[Plan, Checkpoint], rounds: list[Round]) -> Record:
    record = Record(path / "rounds.jsonl")
    record.note(plan=planned[0].to_json(), engine=SUBJECT.engine, shape=SUBJECT.shape, folder="demo")
    for one in rounds:
        record.note(round=one.to_json())
    return record


def test_what_rounds_teach_is_judged_on_the_others(tmp_path: Path, planned: tuple[Plan, Checkpoint]) -> None:
    """Half of them ran on a machine that is 1.3 times as slow as planned; the others teach nothing, however slow."""
    rounds = [a_round(planned, turn, streams, 1.3 if turn % 2 == 0 else 2.6) for turn in range(4) for streams in (1, 4)]
    judge = Judge(*planned, recorded(tmp_path, planned, rounds).rounds(SUBJECT))
    taught, judged = rounds[0], rounds[2]
    assert judge.before(taught)["tpot_ms"] == pytest.approx(taught.figures["tpot_ms"] / 1.3, rel=0.03)
    assert judge.learned(taught)["tpot_ms"] == pytest.approx(taught.figures["tpot_ms"], rel=0.03)
    assert judge.learned(judged)["tpot_ms"] == pytest.approx(judged.figures["tpot_ms"] / 2, rel=0.03)


def test_the_table_counts_what_is_further_off_than_allowed(tmp_path: Path, planned: tuple[Plan, Checkpoint]) -> None:
    rounds = [a_round(planned, turn, 4, 1.3) for turn in range(4)]
    rounds += [a_round(planned, turn, 4, 9.0, is_clean=False) for turn in range(4, 6)]
    record = recorded(tmp_path, planned, rounds)
    rows = [row for row in table(record) if row[1]]
    assert [misses for _, misses in rows] == [[True, False]] * 3, "23 % off before, nothing after; none is of 9.0"
    assert all(" ! | 4: +0 to +0 %" in row and "| 2: +0 to +0 %" in row for row, _ in rows)
    record.note(failed="no port", engine="vllm", shape="demo")
    assert next(row for row in table(record) if "no port" in row[0])[1] == [True]
    record.note(plan=planned[0].to_json(), engine="vllm", shape="demo", folder="demo")
    assert not any("no port" in row for row, _ in table(record)), "it was taken up again"


def test_where_rates_moved_in_every_round_those_count_in_which_nobody_else_computed(
    tmp_path: Path, planned: tuple[Plan, Checkpoint]
) -> None:
    rounds = [a_round(planned, turn, 4, 1.3, is_clean=False, drift=0.3) for turn in range(4)]
    rounds += [a_round(planned, turn, 4, 9.0, is_clean=False, others=0.3) for turn in range(4, 10)]
    rows = [row for row in table(recorded(tmp_path, planned, rounds)) if row[1]]
    assert [misses for _, misses in rows] == [[True, False]] * 3, "none is of 9.0"


def test_a_plan_in_their_order_knows_which_prompts_shared_the_first_step(planned: tuple[Plan, Checkpoint]) -> None:
    plan, checkpoint = planned
    replica = replica_of(plan, checkpoint.spec, Hardware((), 1 << 36, 1 << 36, 2).cpu_device, Measured(RATES))
    first = Arrival(0.0, 64, 16)
    run = simulate(replica.steps, Load(trace=(first, *[first._replace(beside=True)] * 3)), replica.limits)
    found = figures_of(run, Load())
    one = replace(a_round(planned, 0, 4, 1.0), served=tuple(served_of(run.finished)))
    judge = Judge(plan, checkpoint, [one])
    assert judge.in_their_order(one)["ttft_ms"] == pytest.approx(found.ttft_ms.mean, rel=0.01)
    assert judge.in_their_order(one)["tpot_ms"] == pytest.approx(found.tpot_ms.mean, rel=0.01)
    assert judge.before(one)["tpot_ms"] > 1.02 * found.tpot_ms.mean, "who comes after one prompt, holds it up"


def test_answers_of_a_round_do_not_end_together_and_are_the_same_each_time(planned: tuple[Plan, Checkpoint]) -> None:
    arguments = benchmark.parsed([])
    load = benchmark.load_of(4, arguments)
    assert load == benchmark.load_of(4, arguments)
    assert len(load.lengths) == load.total_prompts == 12
    answers = [answer for _, answer in load.lengths]
    assert len(set(answers)) > 8
    assert sum(answers) / len(answers) == pytest.approx(arguments.output_len, rel=0.03)
    assert {prompt for prompt, _ in load.lengths} == {arguments.input_len}
    one = replace(a_round(planned, 0, 4, 1.0), load=load)
    assert Round.from_json(json.loads(json.dumps(one.to_json()))) == one


def test_a_record_that_was_cut_off_holds_what_was_whole(tmp_path: Path, planned: tuple[Plan, Checkpoint]) -> None:
    whole = a_round(planned, 0, 1, 1.0)
    record = recorded(tmp_path, planned, [whole, a_round(planned, 1, 1, 1.0)])
    record.path.write_text(record.path.read_text()[:-40])
    assert record.rounds(SUBJECT) == [whole]


def test_rates_around_a_round() -> None:
    later = replace(
        RATES, linear_ps=tuple((rows, 1.1 * ps) for rows, ps in LINEAR), large_ps=RATES.large_ps, read_bytes_per_s=50e9
    )
    assert drift_between(RATES, RATES) == 0.0
    assert drift_between(later, RATES) == pytest.approx(0.05), "the mean of both sizes"
    both = mean_of(RATES, later)
    assert both.read_bytes_per_s == 45e9
    assert dict(both.linear_ps)[1] == pytest.approx(84.0)


def test_an_engine_that_fails_does_not_take_the_others_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[tuple[Subject, float]] = []

    class Session:
        record = Record(tmp_path / "rounds.jsonl")

        async def serve(self, service: benchmark.Service, ends_at: float) -> None:
            served.append((service.subject, ends_at - time.monotonic()))
            if service.subject.engine == "vllm":
                raise SystemExit("vLLM ended")

    monkeypatch.setattr(benchmark, "write_checkpoint", lambda folder, shape: folder)
    benchmark.run_all(benchmark.parsed(["--shapes", "small", "large", "--most-minutes", "9"]), Session(), tmp_path)
    assert [str(subject) for subject, _ in served] == [
        f"{engine}, {shape}" for shape in ("small", "large") for engine in ("transformers", "vllm")
    ]
    minutes = [round(seconds / 60) for _, seconds in served]
    assert minutes == [1, 2, 3, 9], "a share by weight, and the last one all that is left"
    assert list(Session.record.failures().values()) == ["vLLM ended"] * 2
