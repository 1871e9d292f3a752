"""The summary of `qserve report` at 80 columns: what ran, plan and measurement, results, faults, the next step."""

from __future__ import annotations

from dataclasses import replace

import pytest

from qserve.cli.report.live import shown_live
from qserve.cli.report.show import printed, to_summary
from qserve.report import RunReport
from qserve.units import MIB
from tests.golden.screens import check_screen
from tests.unit.report.made_up import BEGAN, LATENCY, WORK, a_full_report, a_run, training

MOST_LINES = 45


@pytest.fixture
def served() -> RunReport:
    """Of an engine whose release does not change."""
    report = a_full_report(trainings=(), made_unix_s=BEGAN + 1000)
    workers = tuple(replace(worker, plan={**worker.plan, "engine_version": "1.2.3"}) for worker in report.run.workers)
    return replace(report, run=replace(report.run, workers=workers))


def test_of_a_service(served: RunReport, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = to_summary(served)
    assert len(shown.splitlines()) <= MOST_LINES
    check_screen("report-service", shown)


def test_of_a_training_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    (trained,) = a_full_report().trainings
    run = a_run(num_requests=0, num_errors=0, command=("qserve", "train", "reward", "--data", "pairs.jsonl"))
    check_screen("report-training", to_summary(RunReport(run, trainings=(trained,))))
    stopped = replace(trained, document={**training(), "state": "stopped", "step": 20})
    check_screen("report-training-stopped", to_summary(RunReport(run, trainings=(stopped,))), longest=90)
    nothing = {"curve": [], "evaluations": [], "measured": {}, "held_out": {}, "quality": None, "check": None}
    unmeasured = dict.fromkeys(("step", "num_steps", "tokens_per_s", "step_s", "flops_per_s", "mfu"))
    ended = {"state": "failed", "reason": "the process was killed by SIGKILL", "rollouts": []}
    failed = replace(trained, document={**training(), **nothing, **unmeasured, **ended})
    check_screen("report-training-failed", to_summary(RunReport(run, trainings=(failed,))), longest=90)


def test_of_a_service_that_runs(served: RunReport, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    chat, reward = served.run.workers
    held = {**served.memory[0].terms, "sources": {"weights_bytes": "sum of the tensors"}}
    common = {"state": "ready", "memory": held, "start_phases_s": {"importing": 3.0, "loading weights": 0.5}}
    document = {
        "data": [
            {
                "worker": "chat",
                "models": ["demo"],
                "num_restarts": 0,
                "planned": chat.plan,
                **common,
                "latency": {**LATENCY, "others_share": 0.4},
            },
            {
                "worker": "reward",
                "models": ["demo-reward"],
                "num_restarts": 2,
                "planned": reward.plan,
                **common,
                "error": "it was killed",
                "work": {**WORK, "pairs_per_s": 25.0},
            },
        ],
        "host": [
            {"process": "gateway", "planned_bytes": 70 * MIB, "resident_bytes": 64 * MIB},
            {"process": "web UI", "planned_bytes": 208 * MIB, "resident_bytes": None},
        ],
    }
    shown = {full: printed(shown_live(document, "http://127.0.0.1:8000", 80, full=full)) for full in (False, True)}
    check_screen("report-running", shown[False])
    assert "sum of the tensors" in shown[True] and "sum of the tensors" not in shown[False]
