"""avg@k, pass@k and maj@k of answers that are known."""

from __future__ import annotations

import math
from typing import Any

import pytest

from qserve.evaluation.answers.repeated import combined, repeated_figures


def sample(item: int, answer: str, right: str, **more: Any) -> dict[str, Any]:
    found = float(answer == right)
    return {"doc_id": item, "filtered_resps": [answer], "filter": "none", "metrics": ["em"], "em": found, **more}


# Two items, three answers each: 1 of 3 and 2 of 3 are right.
RUNS = [
    [sample(0, "7", "7"), sample(1, "5", "4")],
    [sample(0, "8", "7"), sample(1, "4", "4")],
    [sample(0, "8", "7"), sample(1, "4", "4")],
]


def test_figures_of_three_answers_to_two_items() -> None:
    avg, passed, majority = repeated_figures("em", RUNS)
    assert [one.name for one in (avg, passed, majority)] == ["avg@3", "pass@3", "maj@3"]
    assert avg.value == pytest.approx(0.5)
    assert avg.stderr == pytest.approx(math.sqrt(((1 / 3 - 1 / 2) ** 2 + (2 / 3 - 1 / 2) ** 2) / 1) / math.sqrt(2))
    assert (passed.value, passed.stderr) == (1.0, 0.0)
    assert majority.value == 0.5  # 8 (wrong) and 4 (right)


def test_items_come_in_any_order_and_one_has_no_standard_error() -> None:
    mixed = [RUNS[0], RUNS[1][::-1], RUNS[2]]
    assert repeated_figures("em", mixed) == repeated_figures("em", RUNS)
    assert repeated_figures("em", [run[:1] for run in RUNS])[0].stderr is None


def test_the_figure_at_lm_evals_place_is_the_mean_over_answers() -> None:
    results = [
        {"results": {"t": {"em,none": 0.5, "em_stderr,none": 0.1}}, "samples": {"t": run}, "config": index}
        for index, run in enumerate(RUNS)
    ]
    whole = combined(results)
    figures = whole["results"]["t"]
    assert figures["em,none"] == figures["em_avg@3,none"] == pytest.approx(0.5)
    assert {name for name in figures if "@" in name and "stderr" not in name} == {
        "em_avg@3,none",
        "em_pass@3,none",
        "em_maj@3,none",
    }
    assert [one["filtered_resps"] for one in whole["samples"]["t"][0]["repeats"]] == [["8"], ["8"]]
    assert results[0]["results"]["t"]["em,none"] == 0.5 and "em_avg@3,none" not in results[0]["results"]["t"]
