"""What `qserve eval` and `qserve compare` print at 80 columns."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from qserve.cli.compare.show import show_candidates
from qserve.cli.eval.show import show_diff, show_preview, show_result, show_warnings
from qserve.evaluation.comparison.compare import Candidate
from qserve.evaluation.comparison.diff import Drift, Flip, TaskDiff
from qserve.evaluation.comparison.load import LoadFigures
from qserve.evaluation.preview import Preview
from qserve.evaluation.results import EvalResult
from tests.golden.screens import WIDTH, check_screen

GENERATED = {"num_answers": 240, "truncated": 0, "empty": 0, "null": 0, "num_thoughts": 0, "mean_tokens": 7.1}
ABOUT = {"model": "demo", "scheme": "bf16", "seconds": 16.31}
LONG = "leaderboard_math_precalculus_hard_with_a_long_name"


def screen(show: Callable[[Console], None]) -> str:
    console = Console(file=io.StringIO(), width=WIDTH, highlight=False)
    show(console)
    return console.file.getvalue()  # type: ignore[attr-defined]


def result(*tasks: tuple[str, dict[str, Any]], **more: Any) -> EvalResult:
    names = [name for name, _ in tasks]
    return EvalResult(
        ABOUT,
        {
            "results": {name: {"alias": name, **figures} for name, figures in tasks},
            "samples": {name: [] for name in names},
            "n-samples": {name: {"effective": 240} for name in names},
            "n-shot": dict.fromkeys(names, 0),
            "higher_is_better": {name: {"word_perplexity": False} for name in names},
            **more,
        },
    )


OFFLINE = (
    ("qserve_demo_choice", {"acc,none": 0.979167, "acc_stderr,none": 0.009239}),
    ("qserve_demo_generate", {"exact_match,none": 0.995833, "exact_match_stderr,none": 0.004167, **GENERATED}),
    ("qserve_demo_text", {"word_perplexity,none": 115_600_000.0}),
)


def test_a_result() -> None:
    check_screen("eval-result", screen(lambda console: show_result(console, result(*OFFLINE))))


def test_a_result_with_thoughts_that_were_cut_off_and_items_without_a_score() -> None:
    thoughts = {**GENERATED, "truncated": 12, "empty": 3, "num_thoughts": 240, "mean_tokens": 8123.4}
    figures = {
        "exact_match,none": 0.4,
        "exact_match_stderr,none": 0.03,
        "exact_match_pass@4,none": 0.7,
        "exact_match_pass@4_stderr,none": 0.02,
        **thoughts,
    }
    whys = {"num_items": 240, "whys": {"3": "gold 9 is not one of its choices 0 to 3", "7": "it has no gold"}}
    one = result((LONG, figures), OFFLINE[0], unscorable={"qserve_demo_choice": whys})

    def show(console: Console) -> None:
        show_result(console, one)
        show_warnings(console, {"API returned null content.": 3, **{f"warning {number}": 1 for number in range(6)}})

    check_screen("eval-thinking", screen(show))


def flips(num_better: int, num_worse: int) -> tuple[Flip, ...]:
    return tuple(
        Flip(number, "choice 2", "choice 1", "choice 2", is_better=number < num_better)
        for number in range(num_better + num_worse)
    )


DIFFS = (
    TaskDiff("qserve_demo_choice", "acc", 240, 0.979167, 0.9875, flips(2, 0), 0.5, Drift(960, 0.1012, 0.71), 2),
    TaskDiff("qserve_demo_generate", "exact_match", 240, 0.991667, 0.991667, (), 1.0, None, 0),
    TaskDiff("qserve_demo_text", "log-likelihood", 48, -980.8, -967.4, (), 1.0, Drift(48, 14.2, 31.0)),
)
WORSE = (
    TaskDiff("qserve_demo_choice", "acc", 240, 0.979167, 0.875, flips(1, 26), 0.0001, Drift(960, 0.83, 4.56), 31),
    TaskDiff("qserve_demo_generate", "exact_match", 240, 0.991667, 0.983333, flips(0, 2), 0.5, None, 9),
)


def test_two_results() -> None:
    long = replace(WORSE[0], task=LONG)
    check_screen("eval-diff", screen(lambda console: show_diff(console, (*DIFFS, long))))


def test_the_first_item(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    prompt = "<|im_start|>user\ncalculate 84+80.<|im_end|>\n<|im_start|>assistant\n"
    show_preview(Preview("qserve_demo_generate", prompt, "", "164", "164", "164", "complete", 4))
    show_preview(Preview("aime24", "How many? " * 40, "Let me see. " * 40, "", "", "42", "truncated", 256))
    check_screen("eval-first-item", capsys.readouterr().err)


def candidate(quant: str, weights_bytes: int, rate: float, *diffs: TaskDiff, usd: float | None = None) -> Candidate:
    load = LoadFigures(8, 32, rate, 2e4 / rate, None if rate > 600 else 7e3 / rate, 2.2e5 / rate)
    memory = {"weights_bytes": weights_bytes, "resident_bytes": 430_000_000}
    return Candidate(quant, ABOUT, memory, weights_bytes, 6.87, load, result(*OFFLINE), diffs, usd)


def test_a_comparison() -> None:
    candidates = [
        candidate("bf16", 4_000_000, 978.0, usd=0.35),
        candidate("int8", 2_280_000, 407.0, *DIFFS, usd=0.35),
        candidate("4bit", 1_480_000, 913.0, *WORSE, usd=0.35),
    ]
    check_screen("compare", screen(lambda console: show_candidates(console, "demo on offline", candidates)))


def test_a_comparison_of_reward_models() -> None:
    def rewards(quant: str, weights_bytes: int, accuracy: float, *diffs: TaskDiff) -> Candidate:
        load = LoadFigures(8, 32, 5120.0, None, None, 51.3)
        of_pairs = result(("preferences", {"acc,none": accuracy, "acc_stderr,none": 0.01}))
        memory = {"weights_bytes": weights_bytes, "resident_bytes": 430_000_000}
        return Candidate(quant, ABOUT, memory, weights_bytes, 5.1, load, of_pairs, diffs)

    moved = TaskDiff("preferences", "acc", 260, 0.965385, 0.965385, (), 1.0, Drift(520, 0.68, 3.38), 0)
    both = [rewards("bf16", 5_767_168, 0.965385), rewards("4bit", 1_887_436, 0.965385, moved)]
    check_screen("compare-rewards", screen(lambda console: show_candidates(console, "demo on preferences", both)))
