"""Two results item by item, and McNemar's exact test against values computed by hand."""

from __future__ import annotations

from typing import Any

import pytest

from qserve.errors import UsageError
from qserve.evaluation.comparison.diff import compare, mcnemar
from qserve.evaluation.results import EvalResult


def sample(doc: int, right: int, answers: list[Any], **also: Any) -> dict[str, Any]:
    told = {"doc_id": doc, "doc_hash": f"h{doc}", "target": "t", "filtered_resps": answers, "metrics": ["acc"]}
    return {**told, "acc": right, **also}


def result(**tasks: list[dict[str, Any]]) -> EvalResult:
    return EvalResult({}, {"samples": tasks})


@pytest.mark.parametrize(
    ("better", "worse", "p"),
    [(0, 0, 1.0), (5, 5, 1.0), (0, 5, 0.0625), (1, 8, 20 / 512), (10, 0, 2 / 1024), (3, 4, 1.0)],
)
def test_mcnemar_is_the_two_sided_binomial_test(better: int, worse: int, p: float) -> None:
    assert mcnemar(better, worse) == pytest.approx(p)
    assert mcnemar(worse, better) == pytest.approx(p)


def test_flips_say_which_item_went_which_way() -> None:
    choices = [[(-1.0, True), (-2.0, False)], [(-3.0, False), (-1.5, True)]]
    before = result(a=[sample(0, 1, choices[0]), sample(1, 0, choices[0]), sample(2, 1, choices[0])])
    after = result(a=[sample(0, 0, choices[1]), sample(1, 1, choices[1]), sample(2, 1, choices[0])])
    (diff,) = compare(before, after)
    assert (diff.before, diff.after) == (pytest.approx(2 / 3), pytest.approx(2 / 3))
    assert [(flip.doc_id, flip.is_better) for flip in diff.flips] == [(0, False), (1, True)]
    assert (diff.flips[0].before, diff.flips[0].after) == ("choice 0", "choice 1")
    assert diff.p_value == 1.0
    assert diff.drift is not None
    assert (diff.drift.num_scores, diff.drift.largest) == (6, pytest.approx(2.0))
    assert diff.drift.mean == pytest.approx((2.0 + 0.5 + 2.0 + 0.5) / 6)


def test_an_item_that_the_server_refused_is_left_out() -> None:
    """It is among the samples, without an answer and without a figure (`refusals`)."""
    refused = {"doc_id": 0, "doc_hash": "h0", "target": "t", "filtered_resps": [], "metrics": []}
    for first, second in ((refused, refused), (sample(0, 1, ["x"]), refused)):
        (diff,) = compare(result(a=[first, sample(1, 1, ["x"])]), result(a=[second, sample(1, 1, ["x"])]))
        assert (diff.num_items, diff.metric) == (1, "acc")


def test_items_that_only_one_answered_are_left_out() -> None:
    (diff,) = compare(result(a=[sample(0, 1, ["x"]), sample(1, 1, ["x"])]), result(a=[sample(1, 0, ["y"])]))
    assert diff.num_items == 1
    assert (diff.flips[0].before, diff.flips[0].after) == ("x", "y")


def test_another_question_under_the_same_number_is_refused() -> None:
    with pytest.raises(UsageError, match="a different question"):
        compare(result(a=[sample(0, 1, ["x"])]), result(a=[sample(0, 1, ["x"], doc_hash="other")]))


def test_results_without_a_common_task_are_refused() -> None:
    with pytest.raises(UsageError, match="in common"):
        compare(result(a=[sample(0, 1, ["x"])]), result(b=[sample(0, 1, ["x"])]))


def text(log_likelihood: float) -> dict[str, Any]:
    told = {"doc_id": 0, "doc_hash": "h", "filtered_resps": [log_likelihood], "metrics": ["word_perplexity"]}
    return {**told, "word_perplexity": [log_likelihood, 9]}


def test_a_text_has_no_right_and_wrong_but_a_log_likelihood_that_drifts() -> None:
    (diff,) = compare(result(a=[text(-5.0)]), result(a=[text(-5.5)]))
    assert not diff.has_answers and not diff.flips and diff.p_value == 1.0
    assert (diff.before, diff.after) == (-5.0, -5.5)
    assert diff.drift is not None and diff.drift.largest == pytest.approx(0.5)


def test_a_figure_that_is_a_share_for_one_item_only_is_no_right_and_wrong() -> None:
    """The first item's figure may be 1 by chance where the others have shares."""
    half = {**sample(1, 1, ["y"]), "acc": 0.5}
    with pytest.raises(UsageError, match="in common"):
        compare(result(a=[sample(0, 1, ["x"]), half]), result(a=[sample(0, 1, ["x"]), half]))
