"""Ctrl-C while `qserve train` runs, but the process that trains does not: what is printed is what became of the run."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from qserve.cli.progress import ProgressLine
from qserve.cli.train import command as command_module
from qserve.runs import RunStore
from qserve.training import checkpoints, launch
from qserve.training.job import TrainingRun
from qserve.training.record import TrainingRecord
from qserve.training.stop_signals import StopSignals

TRAINED = (
    {"event": "train", "from_step": 0, "to_step": 2},
    {"event": "logged", "unix_s": 1.0, "step": 2, "loss": 0.5},
    {"event": "ended", "step": 2},
)


class Process:
    """Writes all of its events and ends well; one that is asked to end at once wrote none."""

    pid = 0

    def __init__(self, run: TrainingRun) -> None:
        self._events, self._status = run.events_file, None

    def poll(self) -> int | None:
        if self._status is None:
            self._events.write_text("".join(json.dumps(one) + "\n" for one in TRAINED))
        return 0 if self._status is None else self._status

    def send_signal(self, number: int) -> None:
        self._status = -number

    def wait(self, timeout: float | None = None) -> int | None:
        return self._status


class SlowProcess(Process):
    """Still loads torch."""

    def poll(self) -> int | None:
        return self._status


def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, process: type[Process] = Process) -> Result:
    """Of `qserve train sft` whose process is a made one."""

    def launched(run: TrainingRun, *_: Path) -> launch.Launched:
        run.events_file.touch()
        return launch.Launched(run, process(run), launch._NewEvents(run.events_file, 0))

    monkeypatch.setattr(launch, "launch", launched)
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"p{n}", "completion": "a"}) + "\n" for n in range(40)))
    words = ["sft", "demo", "--data", str(file), "--output", str(tmp_path / "out"), "--gpu", "none"]
    return CliRunner().invoke(command_module.command, [*words, "--state-dir", str(tmp_path / "state")])


def interrupting(of: Callable[..., Any]) -> Callable[..., Any]:
    def called(*given: Any, **named: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        return of(*given, **named)

    return called


SAVED = [(TrainingRecord, "close"), (checkpoints, "last_checkpoint"), (command_module, "show_summary")]


@pytest.mark.parametrize(("owner", "name"), SAVED)
def test_a_saved_model_is_told_whatever_signal_comes_after_it(owner, name, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(owner, name, interrupting(getattr(owner, name)))
    done = trained(tmp_path, monkeypatch)
    assert done.exit_code == 0 and f"Model    {tmp_path / 'out'}\n" in done.stdout
    assert "nothing is saved" not in done.output
    (kept,) = RunStore.open(tmp_path / "state" / "qserve").trainings()
    assert kept.document["state"] == "ended"


@pytest.mark.parametrize(("owner", "name"), [(TrainingRecord, "__init__"), (TrainingRun, "write")])
def test_a_signal_while_a_run_is_begun_ends_it_and_its_record(owner, name, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(owner, name, interrupting(getattr(owner, name)))
    done = trained(tmp_path, monkeypatch, SlowProcess)
    assert done.exit_code == 130 and "Stopped  before the first step\n" in done.stdout
    assert done.stdout.count("--resume") == 1, "the same command would be refused"
    (run,) = RunStore.open(tmp_path / "state" / "qserve").runs()
    assert (run.state, run.exit_status) == ("ended", 130)


def test_a_signal_before_a_run_is_begun_leaves_nothing_of_it(tmp_path: Path, monkeypatch) -> None:
    files = "qserve.training.configuration.files.write_configuration"
    monkeypatch.setattr(files, interrupting(lambda *_: None))
    done = trained(tmp_path, monkeypatch)
    assert done.exit_code == 130 and "Stopped before the training began: nothing is saved." in done.stderr
    assert not (tmp_path / "out").exists() and not (tmp_path / "state").exists()


def test_a_signal_ends_the_check_of_a_saved_model_and_no_more(tmp_path: Path, monkeypatch) -> None:
    stop = StopSignals()
    monkeypatch.setattr("qserve.training.check.check_saved", interrupting(lambda _: {"num_texts": 1}))
    run, line = TrainingRun.__new__(TrainingRun), ProgressLine.__new__(ProgressLine)
    monkeypatch.setattr(ProgressLine, "phase", lambda *_: None)
    with stop.installed(), stop.counting():
        assert command_module._checked(run, line, stop) is None
        os.kill(os.getpid(), signal.SIGINT)
    assert stop.count == 2
