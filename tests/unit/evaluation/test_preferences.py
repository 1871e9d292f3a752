"""Preferences as a result like lm-eval's: right, wrong, ties, and rewards that drift."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from qserve.errors import UsageError, WorkerFailed
from qserve.evaluation.comparison.diff import compare
from qserve.evaluation.preferences import demo_preferences, evaluate_preferences, read_preferences
from qserve.evaluation.results import EvalResult
from qserve.evaluation.server import ServedModel
from qserve.reward.evaluation.records import Record
from tests.unit.evaluation.answering import answering

PAIRS = [
    {"prompt": "p", "chosen": "good", "rejected": "bad"},
    {"prompt": "p", "chosen": "bad", "rejected": "good"},
    {"prompt": "p", "chosen": "good", "rejected": "good"},
    {
        word: [{"role": "user", "content": "p"}, {"role": "assistant", "content": said}]
        for word, said in (("chosen", "good"), ("rejected", "bad"))
    },
]
REWARDS = {"good": 1.0, "bad": -1.0}


@pytest.fixture
def records(tmp_path: Path) -> list[Record]:
    file = tmp_path / "pairs.jsonl"
    file.write_text("".join(json.dumps(pair) + "\n" for pair in PAIRS))
    return read_preferences(file, None)


def rewarding(rewards: dict[str, float]) -> Any:
    def answer(path: str, body: Any) -> tuple[int, Any]:
        return 200, {"data": [{"reward": rewards[one[-1]["content"]]} for one in body["conversations"]]}

    return answer


def asked(records: list[Record], rewards: dict[str, float]) -> EvalResult:
    with answering(rewarding(rewards)) as url:
        served = ServedModel(url, "", "r", 512, "", 8, {})
        return EvalResult({}, evaluate_preferences(served, "pairs", records, lambda answered, wanted: None))


def test_chosen_above_rejected_is_right_and_a_tie_is_not(records: list[Record]) -> None:
    result = asked(records, REWARDS)
    assert [sample["acc"] for sample in result.lm_eval["samples"]["pairs"]] == [1.0, 0.0, 0.0, 1.0]
    (score,) = result.scores()
    assert (score.value, score.num_items) == (0.5, 4)
    assert score.stderr == pytest.approx((0.5 * 0.5 / 3) ** 0.5)


def test_pairs_flip_and_rewards_drift(records: list[Record]) -> None:
    (diff,) = compare(asked(records, REWARDS), asked(records, {"good": -1.0, "bad": 0.0}))
    assert [(flip.doc_id, flip.is_better) for flip in diff.flips] == [(1, False), (2, True), (4, False)]
    assert (diff.flips[0].before, diff.flips[0].after) == ("choice 0", "choice 1")
    assert diff.drift is not None and diff.drift.largest == 2.0


def test_an_answer_without_rewards_is_the_servers_failure(records: list[Record]) -> None:
    with answering(lambda path, body: (200, {"data": [{}]})) as url, pytest.raises(WorkerFailed, match="rewards"):
        evaluate_preferences(ServedModel(url, "", "r", 512, "", 8, {}), "pairs", records, lambda *_: None)


def test_a_line_without_a_preference_is_named(tmp_path: Path) -> None:
    file = tmp_path / "texts.jsonl"
    file.write_text('{"prompt": "p", "response": "r"}\n')
    with pytest.raises(UsageError, match="line 1 is not a preference"):
        read_preferences(file, None)


def test_the_demos_preferences_come_along() -> None:
    assert len(read_preferences(demo_preferences(), None)) == 260
    assert len(read_preferences(demo_preferences(), 7)) == 7
