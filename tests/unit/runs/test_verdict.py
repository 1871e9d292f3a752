"""Whether a trained reward model is better than guessing, beyond chance, and what is advised where it is not."""

from __future__ import annotations

from typing import Any

import pytest

from qserve.runs.verdict import advice_on, fault_of, held_out_facts, warning_of


def document(right: int = 0, pairs: int = 0, accuracy: float = 0.5, **changed: Any) -> dict[str, Any]:
    held_out = held_out_facts({"pairs": pairs, "right": right} if pairs else {})
    return {"held_out": held_out, "quality": None, "curve": [{"step": 1, "accuracy": accuracy}], **changed}


@pytest.mark.parametrize(
    ("right", "pairs", "fault"),
    [
        (1, 11, "worse"),
        (5, 11, "unclear"),
        (8, 11, "unclear"),
        (10, 11, None),
        (33, 66, "unclear"),
        (44, 66, None),
        (0, 0, None),
        (455, 1000, "worse"),
        (545, 1000, None),
    ],
)
def test_chance_is_counted(right: int, pairs: int, fault: str | None) -> None:
    assert fault_of(document(right, pairs)) == fault
    assert (warning_of(document(right, pairs)) is None) == (fault is None)


def test_the_share_is_kept_with_its_interval() -> None:
    facts = held_out_facts({"pairs": 66, "right": 44})
    assert facts["accuracy"] == pytest.approx(2 / 3)
    assert facts["low"] < facts["accuracy"] < facts["high"] and facts["verdict"] == "better"
    assert held_out_facts({"texts": 4}) == {"texts": 4}


def test_scores_are_held_against_their_mean() -> None:
    def labels(*errors: float) -> dict[str, Any]:
        return {"by_label": [{"name": "n", "mse": mse, "mean_mse": 1.0} for mse in errors]}

    assert fault_of(document(quality=labels(1.2, 1.0))) == "mean"
    assert fault_of(document(quality=labels(1.2, 0.9))) is None


def test_a_document_that_keeps_the_counts_alone_has_the_same_verdict() -> None:
    """Those of earlier releases."""
    for right in (1, 5, 11):
        whole = document(right, 11, 0.9)
        counts = whole | {"held_out": {"pairs": 11, "right": right}}
        assert fault_of(counts) == fault_of(whole)
        assert advice_on(counts) == advice_on(whole)


@pytest.mark.parametrize(
    ("asked", "advised"),
    [
        (document(1, 11, 0.9), "`chosen` is the better answer"),
        (document(33, 66, 0.95), "train on more pairs"),
        (document(5, 11, 0.5), "--eval-share"),
        (document(33, 66, 0.5), "higher --learning-rate"),
        (document(1, 11, 0.3), "--eval-share"),
    ],
)
def test_what_the_run_shows_decides_what_is_advised(asked: dict[str, Any], advised: str) -> None:
    assert advised in advice_on(asked)
