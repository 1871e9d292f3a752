"""bench/gpu.py from outside: what crashes, hangs or fails costs itself alone, and what was measured is on disk."""

from __future__ import annotations

import ast
import json
import os
import sys
import time
import tomllib
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench import gpu
from bench.gpu_steps.order import GROUPS
from bench.gpu_steps.page import write_page
from bench.gpu_steps.rows import sentence
from bench.gpu_steps.run import Run
from bench.gpu_steps.steps import StepProcess

ABOUT = {
    "card": "Some Card 80GB",
    "versions": {"torch": "2.13.0", "transformers": "5.19.0"},
    "batcher": "PagedBatcher",
    "optional_packages": {"bitsandbytes": False, "vllm": True},
    "lacks_to_serve": [],
    "device": {"cards": 1, "compute_capability": "9.0"},
}
LIMITS = {
    "planned": {"read_bytes_per_s": 3.35e12},
    "measured": {"read_bytes_per_s": 3e12, "gemv_bytes_per_s": 2e12, "gemm_flop_per_s": 7e14},
}

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
    values = {"budget_s": 4000.0, "out": tmp_path, "shapes": "real", "only": [], **arguments}
    status = gpu.measure(card, Namespace(**values))  # type: ignore[arg-type]
    (written,) = tmp_path.glob("gpu-some-card-80gb-*.json")
    assert written.with_suffix(".md").read_text().startswith("# Some Card 80GB, ")
    result: dict[str, Any] = json.loads(written.read_text())
    return status, result


def test_rows_run_in_the_order_of_their_worth(tmp_path: Path) -> None:
    card = Card()
    status, result = measured(tmp_path, card)
    assert status == 0
    order = list(dict.fromkeys(asked["do"] for asked in card.asked if asked["do"] not in ("fresh", "end")))
    assert order == [
        "begin",
        "limits",
        "kernel",
        "quality",
        "memory",
        "decode",
        "prompts",
        "profile",
        "service_start",
        "service_bench",
        "offloaded_tokens",
        "two_cards",
        "offloaded_speed",
    ]
    groups = [group for group in result if group in GROUPS]
    assert groups == list(GROUPS)
    kernels = [asked for asked in card.asked if asked["do"] == "kernel"]
    assert {asked["read_bytes_per_s"] for asked in kernels} == {3e12}
    decoded = [asked for asked in card.asked if asked["do"] == "decode" and asked["scheme"] == "16 bit"]
    assert [(asked["streams"], asked["variant"]) for asked in decoded if not asked["sampled"]] == [
        (1, "as it runs"),
        (8, "as it runs"),
        (64, "as it runs"),
        (1, "captures off"),
        (8, "captures off"),
        (1, "library's modules"),
        (8, "library's modules"),
    ]
    engines = [words[1] for asked in card.asked if (words := asked.get("flags"))]
    assert engines[:2] == ["vllm", "transformers"]


def test_what_needs_a_package_is_named_and_restarts_nothing(tmp_path: Path) -> None:
    card = Card(begin={**ABOUT, "optional_packages": {"bitsandbytes": False, "vllm": False}})
    _, result = measured(tmp_path, card)
    assert {row["skipped"] for row in result["quantized"]} == {"bitsandbytes is not installed"}
    assert {row["skipped"] for row in result["fp8"] if row.get("engine")} == {"vllm is not installed"}
    starts = [asked for asked in card.asked if asked["do"] == "service_start"]
    fresh = [asked for asked in card.asked if asked["do"] == "fresh"]
    assert len(starts) == len(fresh) == 3
    done = [asked["do"] for asked in card.asked]
    assert all(done[index - 1] == "end" for index, name in enumerate(done) if name == "fresh")


def test_weights_in_fp8_ask_for_a_card_that_takes_them(tmp_path: Path) -> None:
    """Of the engine's own rows; what vLLM does with them is vLLM's."""
    card = Card()
    _, result = measured(tmp_path / "hopper", card, only=["fp8"])
    asked = [(row["do"], row["model"], row["scheme"]) for row in card.asked if row["do"] in ("memory", "decode")]
    models = ("Qwen/Qwen3-32B", "Qwen/Qwen3-30B-A3B")
    assert asked == [(do, model, "fp8") for model in models for do in ("memory", "decode", "decode", "decode")]
    assert [row for row in result["fp8"] if "skipped" in row] == []
    for name, device, reason in (
        ("turing", {"cards": 1, "compute_capability": "7.5"}, "need compute capability 8.0, and this card has 7.5"),
        ("none", None, "needs a card: weights in fp8"),
    ):
        about = {**ABOUT, "device": device} if device else {key: ABOUT[key] for key in ABOUT if key != "device"}
        card = Card(begin=about)
        _, result = measured(tmp_path / name, card, only=["fp8"])
        skipped = [row["skipped"] for row in result["fp8"] if row.get("scheme") == "fp8"]
        assert len(skipped) == 14 and all(reason in one for one in skipped)
        assert "memory" not in {row["do"] for row in card.asked}


def test_another_batcher_gives_no_figures_of_speed(tmp_path: Path) -> None:
    about = {**ABOUT, "batcher": "RowBatcher", "versions": {"transformers": "5.17.0"}}
    card = Card(begin=about)
    status, result = measured(tmp_path, card, only=["bf16", "service"])
    assert status == 1
    assert "transformers 5.17.0 runs the row batcher" in result["machine"][1]["error"]
    assert {asked["do"] for asked in card.asked} - {"end"} == {
        "begin",
        "limits",
        "memory",
        "fresh",
        "service_start",
        "service_bench",
    }
    engines = {row["engine"] for row in result["service"] if "skipped" not in row}
    assert engines == {"vllm"}


def test_what_fails_is_a_row_and_the_rest_goes_on(tmp_path: Path) -> None:
    card = Card(limits={"error": "RuntimeError: no"}, offloaded_tokens={"error": "its process was killed by SIGSEGV"})
    status, result = measured(tmp_path, card)
    assert status == 1
    assert result["offload"][0] == {
        "what": "same tokens with layers offloaded",
        "error": "its process was killed by SIGSEGV",
        "ok": False,
        "seconds": pytest.approx(0, abs=5),
    }
    assert result["offload"][2]["ok"] is True
    assert "same tokens with layers offloaded: FAILED: its process was killed" in _table(tmp_path)
    assert "Limits could not be measured: RuntimeError: no" in _table(tmp_path)


def test_a_model_that_fails_twice_is_not_loaded_again(tmp_path: Path) -> None:
    card = Card(decode={"error": "its process was killed by SIGKILL"})
    _, result = measured(tmp_path, card, only=["bf16"])
    tried = [row["what"] for row in result["bf16"] if "skipped" not in row]
    assert tried == ["memory", "1 streams", "8 streams"]
    assert result["bf16"][-1]["skipped"] == "2 rows before it failed"


def test_loads_of_a_service_that_did_not_start_are_not_sent(tmp_path: Path) -> None:
    card = Card(service_start={"error": "TimeoutError: not ready within 400 s: loading weights"})
    _, result = measured(tmp_path, card, only=["service"])
    assert [row.get("skipped") for row in result["service"]] == [None, *["the service did not start"] * 4] * 2


def test_a_kernel_that_is_refused_fails_its_row(tmp_path: Path) -> None:
    """Figures of a fallback are told as such: on the screen, in the table, by the exit status."""
    path = {
        "batcher": "PagedBatcher",
        "path": "library's modules",
        "attention": "sdpa",
        "products": {},
        "refused": [{"kernel": "rotate_and_store", "reason": "no attribute 'type'", "cost": ""}],
    }
    row = {
        "planned": {"ms_per_step": 24.0},
        "measured": {"ms_per_step": 48.0, "tokens_per_s": 21.0},
        "path": path,
        "bytes_per_step": 64e9,
        "ok": False,
    }
    status, result = measured(tmp_path, Card(decode=row), only=["bf16"])
    assert status == 1
    assert "rotate_and_store REFUSED: no attribute 'type'" in sentence(result["bf16"][1])
    assert "ms per step 24 ms a step planned, 48 ms a step (+100 %)" in sentence(result["bf16"][1])
    assert "| 1 streams | 24.00 | 48.00 | +100 % | 21.0 | 44 % | library's modules | sdpa |" in _table(tmp_path)


def test_what_was_measured_is_on_disk_when_the_rest_is_interrupted(tmp_path: Path) -> None:
    class Interrupted(Card):
        def ask(self, request: dict[str, Any], limit_s: float) -> dict[str, Any]:
            if request["do"] == "memory":
                assert list(tmp_path.glob("gpu-*.json")), "nothing written yet"
                raise KeyboardInterrupt
            return super().ask(request, limit_s)

    _, result = measured(tmp_path, Interrupted())
    assert len(result["kernels"]) == 8
    assert result["machine"][-1]["skipped"] == "interrupted"


def test_one_run_on_a_card_ends_in_a_page_and_constants(tmp_path: Path) -> None:
    """Two commands of one day are one run; what only one of them measured stands there."""
    path = {"num_captured": 4, "batcher": "PagedBatcher", "path": "dense layers, captured", "attention": "sdpa"}
    step = {
        "what": "1 streams",
        "model": "Qwen/Qwen3-32B",
        "scheme": "16 bit",
        "ok": True,
        "path": path,
        "layers": 64,
        "planned": {"ms_per_step": 24.0},
        "measured": {"ms_per_step": 25.0, "tokens_per_s": 40.0},
        "bytes_per_step": 63e9,
        "graphs_bytes": 4 * 64 * 210_000,
    }
    common = {
        "card": "Some Card",
        "date": "2026-11-27",
        "seconds": 10.0,
        "versions": {"torch": "2.11.0"},
        "limits": LIMITS,
    }
    launched = {
        **step,
        "what": "1 streams, captures off",
        "layer_launches": 12,
        "measured": {"ms_per_step": 38.4, "tokens_per_s": 26.0},
    }
    skipped = {**{key: step[key] for key in ("what", "model", "scheme")}, "ok": None, "skipped": "no time"}
    files = []
    for name, rows in (("a", [step]), ("b", [skipped, launched])):
        files.append(tmp_path / f"{name}.json")
        files[-1].write_text(json.dumps({**common, "bf16": rows}))
    page = tmp_path / "gpu.md"
    page.write_text("# Before\n<!-- results: written by bench/gpu.py --page -->\nold\n<!-- end of results -->\nafter\n")
    write_page(files, tmp_path)
    text = page.read_text()
    assert text.startswith("# Before") and text.endswith("after\n") and "old" not in text
    assert text.count("## Some Card, 2026-11-27") == 1 and "Took 20 s" in text
    assert "| Qwen3-32B | 16 bit | 1 streams | 24.00 | 25.00 | +4 % | 40.0 | 84 % |" in text
    found = {
        one["name"]: one["value"] for one in tomllib.loads((tmp_path / "gpu-constants.toml").read_text())["constant"]
    }
    assert found == {
        "read_bytes_per_s": 3e12,
        "gemm_flop_per_s": 7e14,
        "beside_reading_us": 4000.0,
        "graph_bytes_per_layer": 210_000,
        "launch_us": 50.0,
    }
    again = page.read_text()
    write_page(files, tmp_path)
    assert page.read_text() == again


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
    status, result = measured(tmp_path, Card(), budget_s=30.0, only=["bf16"])
    assert status == 0
    memory, decode = result["bf16"][:2]
    assert memory["skipped"].startswith("needs about 40 s of ")
    assert decode["ok"] is True


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
    arguments = Namespace(budget_s=450.0, out=tmp_path, shapes="real", only=[])
    assert gpu.measure(Card(begin=answer), arguments) == status  # type: ignore[arg-type]
    assert said in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "name",
    [
        "gpu.py",
        "gpu_steps/run.py",
        "gpu_steps/steps.py",
        "gpu_steps/order.py",
        "gpu_steps/report.py",
        "gpu_steps/rows.py",
        "gpu_steps/page.py",
    ],
)
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
