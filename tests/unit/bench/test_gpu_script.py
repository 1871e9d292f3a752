"""bench/gpu.py from outside: what crashes, hangs or fails costs itself alone, and what was measured is on disk."""

from __future__ import annotations

import ast
import json
import os
import sys
import time
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench import gpu
from bench.gpu_steps.run import Run
from bench.gpu_steps.steps import StepProcess

ABOUT = {
    "card": "Some Card 80GB", "versions": {"torch": "2.13.0"}, "optional_packages": {"bitsandbytes": False},
    "scheme": "bf16", "weights_bytes": {"Qwen/Qwen3-0.6B": 1_200_000_000, "Qwen/Qwen3-32B": 65_000_000_000},
}  # fmt: skip
LIMITS = {"device": "cuda:0", "read_bytes_per_s": 3e12, "gemv_bytes_per_s": 2e12, "gemm_flop_per_s": 7e14}

# Does what it is asked to, and tells its process id.
CHILD = """
import json, os, sys, time
for line in sys.stdin:
    request = json.loads(line)
    if "signal" in request:
        os.kill(os.getpid(), request["signal"])
    if "status" in request:
        os._exit(request["status"])
    time.sleep(request.get("sleep_s", 0))
    os.write(int(sys.argv[1]), json.dumps({"pid": os.getpid(), **request}).encode() + b"\\n")
"""


@pytest.fixture
def steps() -> Iterator[StepProcess]:
    with StepProcess([sys.executable, "-c", CHILD]) as process:
        yield process


def test_steps_share_a_process_until_one_fails(steps: StepProcess) -> None:
    first, second = steps.ask({}, 30)["pid"], steps.ask({}, 30)["pid"]
    assert first == second
    failed = steps.ask({"error": "ValueError: no"}, 30)
    assert (failed["pid"], failed["error"]) == (first, "ValueError: no")
    assert steps.ask({}, 30)["pid"] != first
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        ({"signal": 11}, "its process was killed by SIGSEGV"),
        ({"signal": 9}, "its process was killed by SIGKILL (the kernel does this when RAM runs out)"),
        ({"status": 3}, "its process ended with status 3"),
    ],
    ids=["crash", "no RAM", "exit"],
)
def test_a_process_that_dies_is_told_and_followed_by_another(
    steps: StepProcess, request_: dict[str, int], said: str
) -> None:
    assert steps.ask(request_, 30) == {"error": said}
    assert "error" not in steps.ask({}, 30)


def test_a_step_that_hangs_is_stopped(steps: StepProcess) -> None:
    pid = steps.ask({}, 30)["pid"]
    began = time.monotonic()
    assert steps.ask({"sleep_s": 60}, 0.2) == {"error": "did not end within 0 s, and was stopped"}
    assert time.monotonic() - began < 30
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


class Card:
    """Answers as a child would; what `broken` names does not."""

    def __init__(self, **broken: dict[str, Any]) -> None:
        self.asked: list[dict[str, Any]] = []
        self._answers = {"begin": ABOUT, "limits": LIMITS, **broken}

    def fresh(self) -> None:
        self.asked.append({"do": "fresh"})

    def ask(self, request: dict[str, Any], limit_s: float) -> dict[str, Any]:
        self.asked.append(request)
        return dict(self._answers.get(request["do"], {"ok": True}))


def measured(tmp_path: Path, card: Card, **arguments: Any) -> tuple[int, dict[str, Any]]:
    values = {"budget_s": 450.0, "out": tmp_path, "shapes": "real", "only": None, **arguments}
    status = gpu.measure(card, Namespace(**values))  # type: ignore[arg-type]
    (written,) = tmp_path.glob("gpu-some-card-80gb-*.json")
    assert written.with_suffix(".md").read_text().startswith("# Some Card 80GB, ")
    result: dict[str, Any] = json.loads(written.read_text())
    return status, result


def test_every_step_is_asked_for_once_and_what_needs_a_package_is_not(tmp_path: Path) -> None:
    card = Card()
    status, result = measured(tmp_path, card)
    assert status == 0
    assert [row["scheme"] for row in result["quality"] if row["ok"]] == ["fp32", "bf16", "fp16"]
    assert {row["skipped"] for row in result["quality"] if not row["ok"]} == {"bitsandbytes is not installed"}
    shapes = [(asked["model"], asked["scheme"]) for asked in card.asked if asked["do"] == "shape"]
    assert shapes == [("Qwen/Qwen3-0.6B", "bf16"), ("Qwen/Qwen3-32B", "bf16")]
    assert all(asked["limits"] == LIMITS for asked in card.asked if asked["do"] == "shape")
    waves = [(asked["streams"], asked["sampled"]) for asked in card.asked if asked["do"] == "waves"]
    assert waves == [(16, True), (64, False), (64, True)]
    order = [asked["do"] for asked in card.asked]
    assert order[order.index("startup") - 1] == "fresh"  # a start is measured in a process of its own
    assert "vllm" not in order
    assert {row["skipped"] for row in result["vllm"]} == {"vllm is not installed"}
    assert len(result["memory"]) == 6  # with 32B and 0.6B in two schemes that were left out


def test_what_fails_is_a_row_and_the_rest_goes_on(tmp_path: Path) -> None:
    card = Card(limits={"error": "RuntimeError: no"}, offloaded_tokens={"error": "its process was killed by SIGSEGV"})
    status, result = measured(tmp_path, card)
    assert status == 1
    assert result["offload"][0] == {
        "what": "same tokens with layers offloaded", "error": "its process was killed by SIGSEGV", "ok": False,
        "seconds": pytest.approx(0, abs=5),
    }  # fmt: skip
    assert [asked["limits"] for asked in card.asked if asked["do"] == "shape"] == [None, None]
    assert "same tokens with layers offloaded: FAILED: its process was killed" in _table(tmp_path)
    assert "Limits could not be measured: RuntimeError: no" in _table(tmp_path)


def test_what_was_measured_is_on_disk_when_the_rest_is_interrupted(tmp_path: Path) -> None:
    class Interrupted(Card):
        def ask(self, request: dict[str, Any], limit_s: float) -> dict[str, Any]:
            if request["do"] == "offloaded_tokens":
                assert list(tmp_path.glob("gpu-*.json")), "nothing written yet"
                raise KeyboardInterrupt
            return super().ask(request, limit_s)

    _, result = measured(tmp_path, Interrupted())
    assert len(result["quality"]) == 7
    assert result["memory"][-1]["skipped"] == "interrupted"


def test_where_nothing_can_be_written_the_files_go_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "results").write_text("a file, no folder")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.setattr("tempfile.mkdtemp", lambda prefix: str(elsewhere))
    run = Run(450, tmp_path / "results")
    run.begin(ABOUT)
    run.end()
    assert len(list(elsewhere.iterdir())) == 2
    assert f"writing to {elsewhere} instead" in capsys.readouterr().out


def test_what_there_is_no_time_for_is_named(tmp_path: Path) -> None:
    status, result = measured(tmp_path, Card(), budget_s=30.0, only="memory")
    assert status == 0
    small, large = result["memory"][:2]
    assert small["ok"] is True
    assert large["skipped"].startswith("needs about 3")
    assert "s of 30 s left" in large["skipped"]


def test_a_step_is_given_no_more_than_what_is_left(tmp_path: Path) -> None:
    given: list[float] = []
    run = Run(20, tmp_path)
    run.attempt("memory", {}, lambda limit_s: given.append(limit_s) or {"ok": True}, most_s=150)
    run.attempt("memory", {}, lambda limit_s: given.append(limit_s) or {"ok": True}, most_s=3)
    assert given == [pytest.approx(30, abs=5), 3]


@pytest.mark.parametrize(
    ("answer", "status", "said"),
    [
        ({"no_card": "torch sees no card on this machine"}, 0, "torch sees no card on this machine; nothing was"),
        ({"error": "its process was killed by SIGSEGV"}, 1, "can't begin: its process was killed"),
    ],
)
def test_without_a_card_that_works_it_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], answer: dict[str, Any], status: int, said: str
) -> None:
    arguments = Namespace(budget_s=450.0, out=tmp_path, shapes="real", only=None)
    assert gpu.measure(Card(begin=answer), arguments) == status  # type: ignore[arg-type]
    assert said in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["gpu.py", "gpu_steps/run.py", "gpu_steps/steps.py", "gpu_steps/report.py"])
def test_the_part_that_says_what_is_missing_needs_nothing_itself(name: str) -> None:
    """It is run by whatever Python a machine has, which may lack torch, or be too old for the rest."""
    tree = ast.parse((gpu.ROOT / "bench" / name).read_text(), feature_version=(3, 10))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    tops = {name.split(".")[0] for name in imported}
    assert tops <= {*sys.stdlib_module_names, "bench"}
    assert not tops & {"tomllib"}


def _table(folder: Path) -> str:
    (written,) = folder.glob("*.md")
    return written.read_text()
