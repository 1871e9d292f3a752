"""`qserve compare` killed in the middle and given again gives what it would have given; reward models alike."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import psutil
import pytest

import qserve
from qserve.evaluation.comparison.diff import compare
from qserve.evaluation.results import EvalResult
from qserve.runs import RunStore
from tests.tiny.serving.called_here import said
from tests.tiny.serving.served import START_LIMIT_S, until

pytest.importorskip("lm_eval", reason="lm-eval is not installed: run make setup")
# What lm-eval's packages warn of is theirs.
pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.usefixtures("offline_hub")]

# `auto` is bf16 for the demo; in float32 both give the same answers, so that one is the measure of the other, which was
# killed and went on.
QUANTS = "bf16,auto"


def command(folder: Path, *arguments: str) -> list[str]:
    return ["compare", *arguments, "--out", str(folder / "out"), "--state-dir", str(folder / "state")]


def started(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    program = [str(Path(sys.executable).with_name("qserve")), *command(folder, *arguments)]
    return subprocess.Popen(program, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def finished(folder: Path, *arguments: str) -> str:
    """What it says, called in this process: it comes to its end."""
    return said(*command(folder, *arguments))


def is_alive(process: psutil.Process) -> bool:
    """One that nobody waits for any more may stay as a zombie, where process 1 does not care."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_killed_and_given_again_it_goes_on(tmp_path: Path) -> None:
    arguments = (
        "--model",
        "demo",
        "--quants",
        QUANTS,
        "--suite",
        "offline",
        "--limit",
        "12",
        "--up-args",
        "--dtype float32",
    )
    killed = started(tmp_path, *arguments)
    second = tmp_path / "out" / "auto"
    servers: list[psutil.Process] = []

    def second_has_a_worker() -> bool:
        servers[:] = psutil.Process(killed.pid).children(recursive=True) if (second / "up.log").is_file() else []
        return len(servers) > 1  # the gateway's process, and the engine's

    try:
        until(second_has_a_worker, 2 * START_LIMIT_S, "the second is never started")
    finally:
        killed.kill()  # SIGKILL: nothing of ours can tidy up
        killed.communicate()
    until(lambda: not any(is_alive(one) for one in servers), START_LIMIT_S, f"left behind: {servers}")
    before = (tmp_path / "out" / "bf16" / "measured.json").read_bytes()

    output = finished(tmp_path, *arguments)
    assert "1 of 2 · bf16: measured before" in output and "2 of 2 · auto: ready after" in output
    assert "2 of 2 · auto: load test" in output and "2 of 2 · auto: answers" in output
    assert (tmp_path / "out" / "bf16" / "measured.json").read_bytes() == before
    for diff in compare(EvalResult.load(tmp_path / "out" / "bf16"), EvalResult.load(second)):
        assert diff.num_items == 12 and not diff.flips, diff
        assert diff.drift is None or diff.drift.largest < 1e-4, diff
    assert "auto against bf16" in output and output.count(" 0 of 12 ") == 2 and output.count(" 1.000 ") == 2
    document = json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert [one["quant"] for one in document["candidates"]] == ["bf16", "auto"]
    for one in document["candidates"]:
        assert one["weights_bytes"] > 0 and one["memory"]["resident_bytes"] > 0 and one["start_s"] > 0
        assert one["load"]["ttft_ms"] > 0 and one["load"]["tpot_ms"] > 0 and one["load"]["tokens_per_s"] > 0
    assert "Stay with bf16" in document["advice"] and document["advice"] in output
    assert "Next    qserve up --model demo --dtype float32 --quant bf16" in output
    assert ET.parse(tmp_path / "out" / "pareto.svg").getroot().tag.endswith("svg")
    store = RunStore.open(tmp_path / "state" / "qserve")
    (stored,) = store.comparisons()
    assert stored.document == document
    assert {run.started_by for run in store.runs()} == {"compare"}


def test_a_reward_model_at_two_quantizations(tmp_path: Path) -> None:
    """Through the library; the command then finds all of it done, and shows the same."""
    kept = {"out": tmp_path / "out", "state_dir": str(tmp_path / "state")}
    first, second = qserve.compare(reward="demo", quants=("bf16", "4bit"), limit=60, **kept)
    assert (first.quant, second.quant) == ("bf16", "4bit") and first.accuracy > 0.9
    assert second.held_bytes < 0.5 * first.held_bytes
    output = finished(tmp_path, "--reward", "demo", "--quants", "bf16,4bit", "--limit", "60")
    again = finished(tmp_path, "--reward", "demo", "--quants", "bf16,4bit", "--limit", "60", "--json")
    told = json.loads(again[again.index("{") :])
    assert "bf16: measured before" in output and "4bit: measured before" in output
    assert "4bit against bf16" in output and "smaller" in output
    document = json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert told == {**document, "folder": str(tmp_path / "out")} and told["recommended"] in ("bf16", "4bit")
    bf16, int4 = document["candidates"]
    assert bf16["scores"]["preferences"] > 0.9 and bf16["load"]["tokens_per_s"] > 0
    assert int4["weights_bytes"] < 0.5 * bf16["weights_bytes"]
    (pairs,) = int4["against_first"]
    assert pairs["num_items"] == 60 and pairs["drift"]["largest"] > 0
