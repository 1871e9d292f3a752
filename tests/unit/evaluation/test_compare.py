"""Advice and picture of a comparison."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace
from typing import Any

from qserve.evaluation.comparison.compare import Candidate, advice, summary_of
from qserve.evaluation.comparison.diff import TaskDiff
from qserve.evaluation.comparison.load import LoadFigures
from qserve.evaluation.comparison.picture import Point, pareto_svg
from qserve.evaluation.results import EvalResult

NOTHING = EvalResult({}, {"results": {}, "samples": {}})


def candidate(quant: str, weights_bytes: int, tokens_per_s: float = 10.0, *diffs: TaskDiff) -> Candidate:
    load = LoadFigures(8, 32, tokens_per_s, 1.0, 1.0, 1.0)
    return Candidate(quant, {}, {"weights_bytes": weights_bytes}, 0, 1.0, load, NOTHING, diffs)


def task(before: float, after: float, p_value: float) -> TaskDiff:
    return TaskDiff("t", "acc", 100, before, after, (), p_value, None)


def test_the_smallest_that_is_not_measurably_worse() -> None:
    said = advice(
        [
            candidate("bf16", 1000),
            candidate("int8", 600, 5.0, task(0.9, 0.88, 0.5)),
            candidate("4bit", 400, 8.0, task(0.9, 0.7, 0.001)),
        ]
    )
    assert said.startswith("int8 holds 40 % less")
    assert "0.50 ×" in said


def test_a_loss_that_chance_can_explain_does_not_count_and_a_gain_never() -> None:
    said = advice([candidate("bf16", 1000), candidate("4bit", 400, 8.0, task(0.7, 0.9, 0.001), task(0.9, 0.88, 0.5))])
    assert said.startswith("4bit")


def test_where_everything_is_worse_or_no_smaller_the_first_stays() -> None:
    assert "stay with bf16" in advice([candidate("bf16", 1000), candidate("4bit", 400, 1.0, task(0.9, 0.5, 0.0))])
    assert "stay with bf16" in advice([candidate("bf16", 1000), candidate("fp16", 1000, 1.0, task(0.9, 0.9, 1.0))])


def test_an_engine_that_does_not_tell_its_weights_counts_as_planned() -> None:
    load = LoadFigures(8, 32, 1.0, 1.0, 1.0, 1.0)
    untold: dict[str, Any] = {"weights_bytes": None}
    assert Candidate("bf16", {}, untold, 77, 1.0, load, NOTHING).held_bytes == 77


def test_the_picture_is_svg_and_joins_what_nothing_beats() -> None:
    points = [
        Point("bf16 <&>", 4_000_000, 0.95, 0.02, 100.0),
        Point("int8", 2_000_000, 0.94, 0.02, 30.0),
        Point("beaten", 3_000_000, 0.90, 0.02, 40.0),
    ]
    root = ET.fromstring(pareto_svg(points, "demo"))
    space = "{http://www.w3.org/2000/svg}"
    texts = [element.text for element in root.iter(f"{space}text")]
    assert "bf16 <&>" in texts
    (front,) = root.iter(f"{space}polyline")
    assert len(front.attrib["points"].split()) == 2
    colours = {element.attrib["fill"] for element in root.iter(f"{space}circle")}
    assert len(colours) == 2


def test_tokens_of_a_right_answer_count_the_thoughts_of_wrong_ones() -> None:
    load = LoadFigures(1, 1, 50.0, 1.0, 1.0, 1.0)
    outcomes = {"num_answers": 10, "truncated": 1, "empty": 0, "null": 0, "num_thoughts": 10, "mean_tokens": 200.0}
    told = {"results": {"t": {"exact_match,none": 0.5, **outcomes}}, "samples": {}}
    one = Candidate("4bit", {}, {}, 0, 1.0, load, EvalResult({}, told))
    assert (one.answer_tokens, one.tokens_per_right) == (200.0, 400.0)
    assert (one.seconds_per_right, one.usd_per_right) == (8.0, None)
    assert replace(one, usd_per_hour=0.9).usd_per_right == 0.002
    assert summary_of(one)["outcomes"]["t"]["truncated"] == 1
    assert Candidate("bf16", {}, {}, 0, 1.0, load, NOTHING).tokens_per_right is None
