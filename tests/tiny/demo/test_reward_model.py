"""The bundled reward model: what `--reward demo` means, and how often it prefers the better answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from qserve.demo import reward_model_path
from qserve.demo.preferences import write_held_out
from qserve.detect import detect
from qserve.planner import PlanRequest
from qserve.reward.evaluation.accuracy import evaluate
from qserve.reward.evaluation.records import read_records
from qserve.reward.items import Score, ScoreItem
from qserve.reward.open import open_scorer
from qserve.reward.scoring.scorer import RewardScorer
from qserve.reward.settings import RewardSettings


@pytest.fixture(scope="module")
def scorer() -> RewardScorer:
    """As `qserve up --reward demo` loads it."""
    return open_scorer("demo", RewardSettings(), detect(), PlanRequest())


def test_it_prefers_the_better_answer_on_questions_it_never_saw(scorer: RewardScorer, tmp_path: Path) -> None:
    write_held_out(tmp_path / "pairs.jsonl", 100)
    records = read_records(tmp_path / "pairs.jsonl")
    contents = [content for record in records for content in record.contents]
    outcomes = scorer.score_now([ScoreItem(scorer.template.encode(content).token_ids) for content in contents])
    rewards = iter(outcome.reward for outcome in outcomes if isinstance(outcome, Score))
    report = evaluate(records, [[next(rewards) for _ in record.contents] for record in records])
    assert report.overall.num_asked == 1300
    assert report.overall.accuracy >= 0.95


def test_what_a_newcomer_tries_first(scorer: RewardScorer) -> None:
    def reward(answer: str) -> float:
        messages = [{"role": "user", "content": "What is 12+30?"}, {"role": "assistant", "content": answer}]
        (score,) = scorer.score_now([ScoreItem(scorer.template.encode(messages).token_ids)])
        assert isinstance(score, Score)
        return score.reward

    assert reward("42") > max(map(reward, ("41", "43", "52", "ok", "I don't know.")))


def test_its_files_are_small_and_whole() -> None:
    names = {path.name for path in reward_model_path().iterdir()}
    assert names == {
        "chat_template.jinja",
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert sum(path.stat().st_size for path in reward_model_path().iterdir()) < 6 * 10**6
