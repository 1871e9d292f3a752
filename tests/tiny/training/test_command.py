"""`qserve train` as people call it: killed, gone on with, checked, kept."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from qserve.runs import RunStore

LIMIT_S = 140


def called(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "qserve", "train", *arguments]


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def flags(runs, output: Path, state: Path) -> tuple[str, ...]:
    """Those of the run `full-disk` of methods.py."""
    return (
        "reward", "--model", "demo", "--data", str(runs.folder / "pairs.jsonl"), "--eval-share", "0.2",
        "--max-steps", "6", "--eval-steps", "6", "--save-steps", "2", "--learning-rate", "1e-3", "--micro-batch", "2",
        "--max-length", "128", "--no-gradient-checkpointing", "--output", str(output), "--state-dir", str(state),
        "--gpu", "none",
    )  # fmt: skip


def wait_for_step(file: Path, step: int, process: subprocess.Popen[str]) -> None:
    until = time.monotonic() + LIMIT_S
    while time.monotonic() < until:
        lines = file.read_text().splitlines() if file.exists() else []
        if any(one["event"] == "logged" and one["step"] >= step for one in map(json.loads, lines)):
            return
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    raise AssertionError(f"no step {step} within {LIMIT_S} s")


def test_killed_and_gone_on_with_it_is_the_run_that_it_would_have_been(runs, tmp_path):
    output, state = tmp_path / "model", tmp_path / "state"
    given = flags(runs, output, state)
    process = subprocess.Popen(
        called(*given), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    )
    events = output / "run" / "events.jsonl"
    wait_for_step(events, 3, process)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=LIMIT_S)
    done = subprocess.run(
        called(*given, "--resume"), capture_output=True, text=True, timeout=LIMIT_S, check=False, env=environment()
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = [
        one for one in map(json.loads, events.read_text().splitlines()) if one["event"] == "logged" and "loss" in one
    ]
    ours = {one["step"]: one["loss"] for one in told}
    assert ours == dict(runs.losses("full-disk"))
    assert "0 of" in done.stdout and "pairs turned around" in done.stdout
    kept = RunStore.open(state / "qserve").trainings()
    assert kept[-1].document["check"]["largest_difference"] < 1e-4
    assert (
        kept[-1].document["measured"]["optimizer_bytes"] == kept[-1].document["planned"]["terms"]["optimizer (reward)"]
    )
