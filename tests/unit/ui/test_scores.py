"""Scores as people see them: the best first, steps on a ground of their colour, nothing that a model wrote as HTML."""

from __future__ import annotations

import re

from qserve.ui.views.scores import answers_view


def row(reward: float, steps: list[float] | None = None) -> dict[str, object]:
    return {"reward": reward, "num_tokens": 7, **({"steps": steps} if steps else {})}


def test_the_best_comes_first_with_its_margin() -> None:
    shown = answers_view(["Answer 1", "Answer 2"], ["a", "b"], [row(-1.0), row(1.0)], {"dtype": "bf16"}, "en")
    assert shown.index("Answer 2") < shown.index("Answer 1")
    assert "2.000" in shown and "88.1 %" in shown, "sigmoid(2)"
    assert "dtype bf16" in shown
    assert "qs-steps" not in shown, "no steps were scored"


def test_no_margin_makes_sure() -> None:
    shown = answers_view(["Answer 1", "Answer 2"], ["a", "b"], [row(9.0), row(-9.0)], {}, "en")
    assert "&gt; 99.9 %" in shown


def test_one_answer_has_no_margin() -> None:
    of_rules = answers_view(["Answer 1", "Answer 2"], ["a", "b"], [row(-1.0), row(1.0)], {"rules_failed": 0}, "en")
    assert "margin" in of_rules and "probability that" not in of_rules
    assert "margin" not in answers_view(["Answer 1"], ["a"], [row(0.25)], {}, "en")


def test_steps_stand_between_red_and_green() -> None:
    steps = ["first", "second", "third", "beyond"]
    shown = answers_view(["Answer 1"], [steps], [row(0.5, [0.0, 0.5, 1.0, 1.7])], {}, "en")
    assert re.findall(r"hsl\((\d+) ", shown) == ["0", "60", "120", "120"]
    assert re.findall(r"<span>(\w+)</span><b>([\d.]+)</b>", shown) == [
        ("first", "0.000"),
        ("second", "0.500"),
        ("third", "1.000"),
        ("beyond", "1.700"),
    ]


def test_scores_of_steps_are_no_logits() -> None:
    rows = [row(0.9, [0.9]), row(0.1, [0.1])]
    shown = answers_view(["Answer 1", "Answer 2"], [["a"], ["b"]], rows, {}, "en")
    assert "0.800" in shown and "preferred" not in shown
    assert re.findall(r"width:([\d.]+)%", shown) == ["90.000", "10.000"], "of one, not of the best"


def test_what_is_written_in_an_answer_stays_text() -> None:
    shown = answers_view(["<b>1</b>"], [["<img src=x onerror=alert(1)>"]], [row(0.5, [0.5])], {"format": "<i>"}, "en")
    assert "<img" not in shown and "<b>1" not in shown and "<i>" not in shown
    assert "&lt;img src=x" in shown


def test_attributes_are_columns_and_bars_with_what_each_counts() -> None:
    rows = [
        {**row(0.5), "attributes": {"helpful": 0.25, "<b>long</b>": -2.0}},
        {**row(1.5), "attributes": {"helpful": 0.75, "<b>long</b>": 3.0}},
    ]
    meta = {"weights": {"helpful": 0.7, "<b>long</b>": -0.1}}
    shown = answers_view(["Answer 1", "Answer 2"], ["a", "b"], rows, meta, "en")
    assert "<h4>helpful × 0.7</h4>" in shown and "<h4>&lt;b&gt;long&lt;/b&gt; × -0.1</h4>" in shown
    assert "<b>long</b>" not in shown
    for value in ("0.2500", "0.7500", "-2.0000", "3.0000"):
        assert shown.count(value) >= 2, "as a bar and in the table"
    assert "qs-attributes" not in answers_view(["Answer 1"], ["a"], [row(0.5)], {}, "en")
