"""Starts the process that trains, follows what it tells, and ends with it: no torch here.

    qserve → guard → accelerate launch → one process a rank             (torchrun for DDP over processes on a CPU)

The guard (`worker/guard.py`) ends all of it when qserve ends, by whatever signal.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from qserve.detect.host import count_physical_cores
from qserve.training.configuration.accelerate import cpu_environment
from qserve.training.heap import heap_settings
from qserve.training.job import TrainingRun
from qserve.training.stop_signals import StopSignals
from qserve.worker import guard

__all__ = ["LOG", "Launched", "environment", "launch", "launcher"]

LOG = "train.log"
_POLL_S = 0.2

Event = dict[str, Any]


class Launched:
    """A run that was started. `follow` is to be called once."""

    def __init__(self, run: TrainingRun, process: subprocess.Popen[bytes], events: _NewEvents) -> None:
        self._run, self._process, self._events = run, process, events

    def follow(self, on_event: Callable[[Event], None], stop: StopSignals) -> int:
        """Every event as it comes; the exit status (minus the signal).

        A first signal saves the step at hand and stops, or ends the process where no step was begun; a second ends it.
        """
        has_begun = False
        while True:
            ended = self._process.poll()
            for event in self._events:
                has_begun = has_begun or event["event"] == "train"
                on_event(event)
            if ended is not None:
                return ended
            if stop.count > 1 or (stop.count and not has_begun):
                self.end()
            elif stop.count and not self._run.stop_file.exists():
                self._run.stop_file.touch()
                on_event({"event": "stopping"})
            time.sleep(_POLL_S)

    def end(self) -> None:
        """Now, without a checkpoint; those that were written are whole."""
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


def launch(run: TrainingRun, job_file: Path, accelerate_file: Path) -> Launched:
    """Starts it, in a session of its own: the terminal's Ctrl-C comes to qserve alone."""
    run.stop_file.unlink(missing_ok=True)
    run.events_file.touch()
    new_events = _NewEvents(run.events_file, run.events_file.stat().st_size)
    command = [
        sys.executable,
        "-I",
        "-S",
        str(guard.__file__),
        *launcher(run, accelerate_file),
        "-m",
        "qserve.training.process",
        str(job_file),
    ]
    with (run.folder / LOG).open("ab") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, env=environment(run)
        )
    return Launched(run, process, new_events)


def environment(run: TrainingRun) -> dict[str, str]:
    """This process's, on a CPU with the heap's settings where the plan needs them and the user has none."""
    if run.device != "cpu":
        return dict(os.environ)
    return {**heap_settings(run), **_threads(run), **os.environ, **cpu_environment(run)}


def _threads(run: TrainingRun) -> dict[str, str]:
    """Of each of several processes: accelerate and torchrun would give each a single one, whatever cores there are."""
    if run.num_processes == 1:
        return {}
    return {"OMP_NUM_THREADS": str(max(1, count_physical_cores() // run.num_processes))}


def launcher(run: TrainingRun, accelerate_file: Path) -> list[str]:
    """What starts the ranks.

    accelerate leaves several processes that say `use_cpu` to MPI, so that torchrun starts those.
    """
    if run.device == "cpu" and run.num_processes > 1 and not run.shards_on_cpu:
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
        return [*torchrun, str(run.num_processes)]
    return [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(accelerate_file)]


class _NewEvents:
    """Iterates over events appended to the file since the last time; an incomplete line is left for the next."""

    def __init__(self, file: Path, start: int) -> None:
        self._file, self._position = file, start

    def __iter__(self) -> Iterator[Event]:
        with self._file.open("rb") as stream:
            stream.seek(self._position)
            for line in stream:
                if not line.endswith(b"\n"):
                    return
                self._position += len(line)
                yield json.loads(line)
