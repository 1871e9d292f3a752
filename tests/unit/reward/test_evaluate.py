"""Accuracy, levels, intervals and histograms, on rewards that are known."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qserve.confidence import wilson_interval
from qserve.errors import UsageError
from qserve.reward.evaluation.accuracy import evaluate, histogram
from qserve.reward.evaluation.agreement import agreement, rank_correlation
from qserve.reward.evaluation.records import Record, read_records


def records(tmp_path: Path, *lines: dict[str, Any]) -> list[Record]:
    file = tmp_path / "file.jsonl"
    file.write_text("\n".join(json.dumps(line) for line in lines) + "\n\n")
    return read_records(file)


USER = {"role": "user", "content": "q"}
ANSWER = {"role": "assistant", "content": "a"}


def test_every_shape_of_a_line_becomes_whole_texts(tmp_path: Path) -> None:
    other = {"role": "assistant", "content": "b"}
    found = records(
        tmp_path,
        {"messages": [USER, ANSWER]},
        {"text": "templated"},
        {"prompt": "q", "response": "a"},
        {"prompt": [USER], "responses": ["a", "b"]},
        {"prompt": "q", "chosen": "a", "rejected": "b"},
        {"chosen": [USER, ANSWER], "rejected": [USER, other]},
        {"prompt": [USER], "chosen": [ANSWER], "rejected": [other]},
        {"prompt": "q", "chosen": ["a"], "rejected": ["b", "b"], "subset": "Math"},
    )
    one, two = [USER, ANSWER], [USER, other]
    assert [record.contents for record in found] == [
        (one,),
        ("templated",),
        (one,),
        (one, two),
        (one, two),
        (one, two),
        (one, two),
        (one, two, two),
    ]
    assert [record.num_chosen for record in found] == [None, None, None, None, 1, 1, 1, 1]
    assert found[-1].subset == "Math"


BAD = {
    "{": r"line 1: not valid JSON: Expecting property name .* at character 2",
    "[1]": r"line 1: a JSON list; it must be an object",
    '{"question": "q"}': r"line 1: the row has the one field question; it needs messages, or text",
    '{"response": "a"}': "no prompt that it answers",
    '{"prompt": 3, "response": "a"}': "line 1: 'prompt' must be a text or a list of messages; found int",
    '{"prompt": "q", "response": 3}': "line 1: 'response' must be a text or a list of messages; found int",
    "": "is empty",
}


@pytest.mark.parametrize("line", BAD)
def test_a_line_that_is_no_record_is_named(line: str, tmp_path: Path) -> None:
    (tmp_path / "file.jsonl").write_text(line)
    with pytest.raises(UsageError, match=BAD[line]):
        read_records(tmp_path / "file.jsonl")


def test_pairs_by_subset_with_ties(tmp_path: Path) -> None:
    pair = {"prompt": "q", "chosen": "a", "rejected": "b"}
    lines = [{**pair, "subset": name} for name in ("x", "x", "x", "y")]
    report = evaluate(records(tmp_path, *lines), [[1.0, 0.0], [0.0, 1.0], [2.0, 2.0], [3.0, 1.0]])
    x, y = report.subsets
    assert (x.name, x.num_asked, x.num_right, x.num_tied) == ("x", 3, 1, 1)
    assert (y.accuracy, report.overall.accuracy, report.chance) == (1.0, 0.5, 0.5)
    assert report.mean_of_subsets == pytest.approx((1 / 3 + 1) / 2)
    assert report.margins == (1.0, -1.0, 0.0, 2.0)


def test_best_of_four(tmp_path: Path) -> None:
    line = {"prompt": "q", "chosen": ["a"], "rejected": ["b", "c", "d"], "subset": "Focus"}
    several = {"prompt": "q", "chosen": ["a", "b"], "rejected": ["c", "d"], "subset": "Ties"}
    report = evaluate(
        records(tmp_path, line, line, several, several), [[2, 1, 1, 0], [2, 1, 3, 0], [2, 3, 1, 0], [2, 0.5, 1, 0]]
    )
    assert report.shape == "best-of-n"
    assert [(subset.name, subset.accuracy) for subset in report.subsets] == [("Focus", 0.5), ("Ties", 0.5)]
    assert report.chance == pytest.approx((1 / 4 + 1 / 4 + 1 / 6 + 1 / 6) / 4)


def test_rm_bench_s_levels(tmp_path: Path) -> None:
    """A model that prefers longer answers whatever they say: right where the chosen one is the longer, else not."""
    line = {"prompt": "q", "chosen": ["a", "bb", "ccc"], "rejected": ["d", "ee", "fff"], "domain": "chat"}
    report = evaluate(records(tmp_path, line), [[1, 2, 3, 1, 2, 3]])
    levels = {level.name: (level.num_asked, level.num_right, level.num_tied) for level in report.levels}
    assert levels == {"easy": (3, 3, 0), "normal": (3, 0, 3), "hard": (3, 0, 0)}
    assert (report.shape, report.subsets[0].name, report.overall.num_asked) == ("rm-bench", "chat", 9)


def test_mixed_shapes_are_refused(tmp_path: Path) -> None:
    pair = {"prompt": "q", "chosen": "a", "rejected": "b"}
    matrix = {"prompt": "q", "chosen": ["a"] * 3, "rejected": ["b"] * 3}
    with pytest.raises(UsageError, match="mixes pairs and rm-bench"):
        evaluate(records(tmp_path, pair, matrix), [[1, 0], [1] * 6])


def test_wilson_s_interval() -> None:
    """The values of the usual tables."""
    assert wilson_interval(8, 10) == pytest.approx((0.4902, 0.9433), abs=1e-4)
    assert wilson_interval(10, 10) == pytest.approx((0.7225, 1.0), abs=1e-4)
    assert wilson_interval(0, 0) == (0.0, 1.0)


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=50))
def test_a_histogram_counts_everyone_and_zero_is_an_edge(values: list[float]) -> None:
    lines = histogram(values)
    assert sum(int(line.split()[-1]) for line in lines) == len(values)
    edges = [float(line.split()[0]) for line in lines]
    assert any(abs(edge) < 1e-9 for edge in edges) or min(edges) > 0 or max(values) < 0
    assert len(lines) <= 15


def test_agreement() -> None:
    found = agreement([1.0, 2.1, 2.0], [1.0, 2.0, 3.0])
    assert (found.num_pairs, found.num_flipped) == (3, 1)
    assert found.largest_difference == pytest.approx(1.0)
    assert found.rank_correlation == pytest.approx(0.5)
    assert agreement([1.0, 2.1, 2.0], [1.0, 2.0, 3.0], [(0, 1)]).num_flipped == 0
    assert agreement([1.0, 2.0], [5.0, 5.0]).num_pairs == 0


@given(st.lists(st.integers(0, 5), min_size=2, max_size=20))
def test_rank_correlation_of_a_list_with_itself(values: list[int]) -> None:
    found = rank_correlation(values, values)
    assert found == pytest.approx(1.0) or (len(set(values)) == 1 and math.isnan(found))
