"""bench/gpu.py without a card: every line but CUDA's own runs on the CPU, and without asking for it, it says so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench.gpu import Run

ROOT = Path(__file__).parents[3]
# What a bare machine with a card may lack; bitsandbytes is optional there as well.
_MISSING = ("click", "pydantic", "starlette", "uvicorn", "prometheus_client", "rich", "pynvml", "aiohttp", "vllm")
_HIDE = "import sys\nfor name in {names}:\n    sys.modules[name] = None\n"


def run(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "sitecustomize.py").write_text(_HIDE.format(names=_MISSING))
    return subprocess.run(
        [sys.executable, "bench/gpu.py", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
    )


def test_without_a_card_it_says_so(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert done.returncode == 0
    assert "torch sees no card on this machine; nothing was measured" in done.stdout


def test_every_step_runs_with_torch_and_transformers_alone(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = run(tmp_path, "--device", "cpu", "--shapes", "tiny", "--out", str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    (written,) = out.glob("gpu-*.json")
    result = json.loads(written.read_text())
    assert [row["ok"] for row in result["quality"]] == [True, True]
    same, _, half = result["offload"]
    assert same["ok"] is True
    assert same["places"] == ["cpu", "disk"]
    assert half["offloaded_bytes"] > 0
    for row in result["memory"]:
        assert row["memory"]["weights_bytes"] > 0
        assert {speed["streams"] for speed in row["speed"]} == {1, 4}
    assert "## Memory, planned / measured" in written.with_suffix(".md").read_text()


def test_what_there_is_no_time_for_is_named_and_what_fails_does_not_end_the_rest() -> None:
    run = Run(budget_s=30)
    run.attempt("memory", {"model": "large"}, lambda: {"ok": True}, needs_s=60)
    run.attempt("memory", {"model": "broken"}, lambda: {"ok": 1 // 0})
    late, broken = run.rows["memory"]
    assert late["skipped"] == "needs about 60 s of 30 s left"
    assert (broken["ok"], broken["error"]) == (False, "ZeroDivisionError: integer division or modulo by zero")


def test_a_step_that_was_begun_in_time_ends_at_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.gpu._GRACE_S", -0.8)
    run = Run(budget_s=1)
    run.attempt("memory", {"model": "endless"}, lambda: time.sleep(60) or {}, needs_s=0)
    (row,) = run.rows["memory"]
    assert row["error"] == "TimeoutError: the time for the whole run was over"
