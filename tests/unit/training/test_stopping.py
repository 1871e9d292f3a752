"""Ctrl-C and SIGTERM of a training run: what they do, what is printed, and what resumes it."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from qserve.cli.train.outputs import again_command, newest_resumable, remove_unstarted
from qserve.core.hardware import Hardware
from qserve.errors import UsageError
from qserve.hub import resolve
from qserve.planner.training import TrainingJob, TrainingRequest
from qserve.runs.training_commands import resume_command
from qserve.training import launch
from qserve.training.checkpoints import last_checkpoint, resumable_runs
from qserve.training.job import DataSource, TrainingRun
from qserve.training.outcome import outcome_of
from qserve.training.record import TrainingRecord
from qserve.training.stop_signals import StopSignals
from qserve.units import GIB

HARDWARE = Hardware((), 8 * GIB, 6 * GIB, 2)
TRAINING = {"event": "train", "from_step": 0, "to_step": 9}
STEP = {"event": "logged", "step": 4, "loss": 0.5}
STOPPED = {"event": "stopped", "step": 4}


def run_in(output: Path, **fields: Any) -> TrainingRun:
    request = TrainingRequest("reward", precision="fp32", max_length=128)
    job = TrainingJob("demo", resolve("demo").spec, "none", (HARDWARE.cpu_device,), request)
    return TrainingRun(request, "demo", DataSource("d.jsonl"), output, plan=job.plan().to_json(), **fields)


@pytest.fixture
def run(tmp_path: Path) -> TrainingRun:
    made = run_in(tmp_path / "out")
    made.write()
    return made


class Process:
    """One that ends once it was asked to, by the stop file (at its next step) or by a signal."""

    pid = 0

    def __init__(self, run: TrainingRun) -> None:
        self.stop_file, self.ended_by = run.stop_file, ""

    def poll(self) -> int | None:
        if self.ended_by:
            return -15
        return 0 if self.stop_file.exists() else None

    def send_signal(self, number: int) -> None:
        self.ended_by = signal.Signals(number).name

    def wait(self, timeout: float | None = None) -> int:
        return -15


def followed(
    run: TrainingRun, events: list[dict[str, Any]], arrive: Callable[[StopSignals], None], monkeypatch
) -> tuple[Process, list[str]]:
    """The process, and the kinds of all events that were told; `arrive` is called while it waits."""
    stop, told, process = StopSignals(), list[str](), Process(run)
    run.events_file.write_text("".join(json.dumps(one) + "\n" for one in events))
    started = launch.Launched(run, process, launch._NewEvents(run.events_file, 0))
    monkeypatch.setattr(launch.time, "sleep", lambda _: arrive(stop))
    started.follow(lambda event: told.append(event["event"]), stop)
    return process, told


def once(stop: StopSignals) -> None:
    stop.count = 1


def test_a_signal_saves_the_step_at_hand(run: TrainingRun, monkeypatch) -> None:
    process, told = followed(run, [TRAINING, STEP], once, monkeypatch)
    assert run.stop_file.exists() and not process.ended_by
    assert told == ["train", "logged", "stopping"]


def test_a_signal_before_the_first_step_ends_the_process_at_once(run: TrainingRun, monkeypatch) -> None:
    process, told = followed(run, [{"event": "imported"}], once, monkeypatch)
    assert process.ended_by == "SIGTERM" and told == ["imported"]
    assert not run.stop_file.exists(), "a step that nobody waits for would be saved"


def test_a_second_signal_ends_the_process_at_once(run: TrainingRun, monkeypatch) -> None:
    def twice(stop: StopSignals) -> None:
        stop.count = 2

    process, _ = followed(run, [TRAINING, STEP], twice, monkeypatch)
    assert process.ended_by == "SIGTERM"


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_are_counted_while_a_run_is_followed_and_end_the_command_else(number: int, status: int) -> None:
    before = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]
    with StopSignals().installed() as stop:
        with stop.counting():
            os.kill(os.getpid(), number)
            assert stop.count == 1
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
        assert stop.exit_status == status
    assert [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)] == before


@pytest.mark.parametrize(("events", "status"), [([TRAINING, STEP, STOPPED], 0), ([TRAINING, STEP], -9), ([], -15)])
def test_a_run_that_was_stopped_has_not_failed(run: TrainingRun, events: list[dict[str, Any]], status: int) -> None:
    job = TrainingJob("demo", resolve("demo").spec, "none", (HARDWARE.cpu_device,), run.request)
    outcome = outcome_of(events, status, run.folder / "log", job, was_stopped=True)
    assert (outcome.state, outcome.reason) == ("stopped", None)
    full = [*events, {"event": "failed", "kind": "disk", "reason": "the disk is full"}]
    assert outcome_of(full, 1, run.folder / "log", job, was_stopped=True).state == "failed"


def test_the_newest_whole_checkpoint_counts(tmp_path: Path) -> None:
    assert last_checkpoint(tmp_path) is None
    for name in ("checkpoint-9", "checkpoint-10", ".saving/checkpoint-11", "checkpoint-x"):
        (tmp_path / name).mkdir(parents=True)
    assert last_checkpoint(tmp_path) == 10


def kept(run: TrainingRun, state: Path, events: list[dict[str, Any]], status: int) -> None:
    """As `qserve train` keeps it at its end."""
    run.write()
    job = TrainingJob("demo", resolve("demo").spec, "none", (HARDWARE.cpu_device,), run.request)
    record = TrainingRecord(run, state, ("qserve", "train"), HARDWARE)
    outcome = outcome_of(events, status, run.folder / "log", job, was_stopped=status == 130)
    record.close(outcome, None, status)


def test_resume_without_a_folder_takes_the_newest_stopped_run_with_these_flags(tmp_path: Path) -> None:
    state = tmp_path / "state"
    asked = run_in(tmp_path / "new")
    with pytest.raises(UsageError, match=f"no stopped run is stored in {state}"):
        newest_resumable(state, asked)
    kept(run_in(tmp_path / "older"), state, [TRAINING, STEP, STOPPED], 130)
    kept(run_in(tmp_path / "newer"), state, [TRAINING, STEP, STOPPED], 130)
    kept(run_in(tmp_path / "other seed", seed=7), state, [TRAINING, STEP], 130)
    kept(run_in(tmp_path / "ended"), state, [TRAINING, STEP, {"event": "ended", "step": 9}], 0)
    assert [one.output.name for one in resumable_runs(state)] == ["other seed", "newer", "older"]
    assert newest_resumable(state, asked) == tmp_path / "newer"
    (tmp_path / "other seed" / "checkpoint-4").mkdir()
    with pytest.raises(UsageError, match=r"other seed \(reward of demo, saved at step 4 of 9\)"):
        newest_resumable(state, replace(asked, seed=8))


def of_another_release(run: TrainingRun) -> None:
    file = run.folder / "job.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "of_a_later_release": True}))


@pytest.mark.parametrize("spoil", [of_another_release, lambda run: (run.folder / "job.json").write_text("[1")])
def test_a_stopped_run_that_can_not_be_read_is_passed_over(tmp_path: Path, spoil: Callable[[TrainingRun], Any]) -> None:
    state, asked, newest = tmp_path / "state", run_in(tmp_path / "new"), run_in(tmp_path / "newest", seed=7)
    kept(run_in(tmp_path / "older"), state, [TRAINING, STEP, STOPPED], 130)
    kept(newest, state, [TRAINING, STEP, STOPPED], 130)
    spoil(newest)
    assert newest_resumable(state, asked) == tmp_path / "older"
    with pytest.raises(UsageError, match="older") as told:
        newest_resumable(state, replace(asked, seed=8))
    assert "newest" not in str(told.value), "its command would be refused"


def test_a_run_that_ended_after_it_was_resumed_is_not_offered(tmp_path: Path) -> None:
    state, run = tmp_path / "state", run_in(tmp_path / "out")
    kept(run, state, [TRAINING, STEP, STOPPED], 130)
    kept(run, state, [TRAINING, STEP, {"event": "ended", "step": 9}], 0)
    assert not list(resumable_runs(state))


TYPED = ("train", "reward", "--model", "demo", "--data", "a b.jsonl")


def test_the_command_that_resumes_is_whole() -> None:
    whole = "qserve train reward --model demo --data 'a b.jsonl'"
    assert resume_command(Path("/o"), TYPED) == f"{whole} --output /o --resume"
    assert resume_command(Path("/o"), (*TYPED, "--output", "o", "--resume")) == f"{whole} --output o --resume"
    assert resume_command(Path("/o"), (*TYPED, "--output=o")) == f"{whole} --output=o --resume"


def test_the_command_that_trains_again_is_longer_and_has_a_folder_of_its_own() -> None:
    whole = "qserve train reward --model demo --data 'a b.jsonl'"
    assert "s3" not in again_command(3.0, (*TYPED, "--hf-token", "s3", "--api-key=s3"))
    assert again_command(3.0, (*TYPED, "--output", "o")) == f"{whole} --epochs 9"
    assert again_command(1.0, (*TYPED, "--epochs=1", "--resume")) == f"{whole} --epochs 3"
    assert again_command(1.0, (*TYPED, "--max-steps", "60")) == f"{whole} --max-steps 180"


def test_what_was_prepared_for_nothing_is_removed(tmp_path: Path) -> None:
    run = run_in(tmp_path / "out")
    for folder in (run.data_folder, run.output / ".data-fresh", run.folder):
        folder.mkdir(parents=True)
    remove_unstarted(run)
    assert not run.output.exists()
    run.write()
    remove_unstarted(run)
    assert run.folder.exists(), "it is that of a run that was resumed"
