"""What `score`, `eval-reward` and `reward check` print at their end, at 80 columns."""

from __future__ import annotations

from typing import Any

import pytest

from qserve.cli.progress import count_text
from qserve.cli.reward.check_model import CheckedRewards, show_model
from qserve.cli.reward.check_parts import show_parts
from qserve.cli.reward.show import show_against, show_attributes, show_next, show_preferences, show_quality, show_score
from qserve.reward.evaluation.accuracy import by_attribute, evaluate
from qserve.reward.evaluation.agreement import Agreement
from qserve.reward.evaluation.calibration import calibration
from qserve.reward.evaluation.length_bias import length_bias
from qserve.reward.evaluation.parts import JudgeFound, PartFound
from qserve.reward.evaluation.records import Record
from tests.golden.screens import WIDTH, check_screen

META = {
    "format": "sequence-classification",
    "pooling": "not-pad",
    "dtype": "bfloat16",
    "quant": "none",
    "max_length": 2048,
    "template_hash": "fe5a026a26793211",
    "weights": {"helpfulness": 0.65, "verbosity": -0.4},
}
SCORED: dict[str, Any] = {
    "file": "preferences.jsonl",
    "output": "rewards.jsonl",
    "model": "./my-reward-model",
    "num_rows": 8000,
    "num_kept_rows": 0,
    "num_failed_rows": 0,
    "has_preferences": True,
    "num_texts": 16_000,
    "num_tokens": 4_812_332,
    "num_truncated": 0,
    "duration_s": 82.41,
    "tokens_per_s": 58_395.0,
    "errors": [],
    "meta": META,
}


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(WIDTH))


def test_the_end_of_score(capsys: pytest.CaptureFixture[str]) -> None:
    show_score(SCORED, ["--reward", "./my-reward-model"])
    check_screen("score-end", capsys.readouterr().err)


def test_the_end_of_a_score_that_continued(capsys: pytest.CaptureFixture[str]) -> None:
    more = {"num_kept_rows": 1204, "num_failed_rows": 3, "num_truncated": 12, "has_preferences": False, "output": None}
    show_score({**SCORED, **more, "model": "http://127.0.0.1:8000", "meta": {"format": "recipe"}}, [])
    check_screen("score-end-continued", capsys.readouterr().err)


def preferences(scale: float, *subsets: str) -> Any:
    records, rewards = [], []
    for index in range(200):
        content = [{"role": "user", "content": str(index)}]
        subset = subsets[index % len(subsets)] if subsets else None
        records.append(Record(index + 1, (content, [*content, *content]), 1, subset, {}))
        rewards.append([scale * ((index * 37) % 100 - 20) / 10, float((index * 13) % 7) - 3])
    return records, rewards


def test_the_next_command_can_be_copied(capsys: pytest.CaptureFixture[str]) -> None:
    """With the flags that the model needs, in one line, and without a key."""
    flags = ["--reward", "./a folder/[adapter]", "--base", "./Qwen3-8B", "--template", "a-rather-long-name.jinja"]
    show_score(SCORED, [*flags, "--api-key", "a-secret"])
    given = "--reward './a folder/[adapter]' --base ./Qwen3-8B --template a-rather-long-name.jinja"
    command = f'Next   qserve eval-reward preferences.jsonl {given} --api-key "$QSERVE_API_KEY"'
    assert capsys.readouterr().err.splitlines()[-1] == command
    show_next(evaluate(*preferences(1.0)), flags, flags)
    assert capsys.readouterr().out.splitlines()[-1] == f"Next     qserve up {given}"
    show_next(evaluate(*preferences(-0.1)), flags, None)
    assert capsys.readouterr().out.splitlines()[-1] == f"Next     qserve reward check {given}"


def shown(records: Any, rewards: Any, name: str) -> Any:
    report = evaluate(records, rewards)
    show_preferences(report, name, "preferences.jsonl")
    show_attributes(by_attribute(records, [[{"helpfulness": a, "verbosity": -a} for a in row] for row in rewards]))
    lengths = [[20 + index % 7, 23] for index in range(len(records))]
    show_quality(calibration(report.margins), length_bias(rewards, lengths, [1] * len(records)))
    return report


def test_the_end_of_eval_reward(capsys: pytest.CaptureFixture[str]) -> None:
    served = ["--reward", "./my-reward-model"]
    report = shown(*preferences(1.0, "Factuality", "Math", "Precise instruction following"), served[-1])
    show_against({"url": "http://127.0.0.1:8000", "decided_alike": 0.91, "rank_correlation": 0.83, "accuracy": 0.7})
    show_next(report, served, served)
    check_screen("eval-reward-end", capsys.readouterr().out)


def test_a_model_that_guesses_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    served = ["--reward", "demo"]
    show_next(shown(*preferences(-0.1), served[-1]), served, served)
    check_screen("eval-reward-end-guessing", capsys.readouterr().out)


def test_the_end_of_reward_check(capsys: pytest.CaptureFixture[str]) -> None:
    close = Agreement(600, 0.219, 0.0399, 6.73, 0.99991, 300, 0)
    far = Agreement(600, 1.87, 0.262, 6.73, 0.9981, 300, 4)
    rows = {
        "bf16": CheckedRewards(close, {"helpfulness": close, "verbosity": far}, {"dtype": "bfloat16"}, 2),
        "4bit": CheckedRewards(far, {}, {"dtype": "bfloat16"}, 2),
    }
    show_model(rows)
    judge = JudgeFound(120, 14, 0.1, 0.3, "I prefer the second.")
    part = PartFound(
        "helpful",
        "judge",
        1.0,
        120,
        14,
        0.62,
        0.0,
        1.0,
        60,
        41,
        3,
        None,
        judge,
        (),
        ("it is 0.5 for every text, so training learns nothing from it",),
    )
    show_parts([part])
    check_screen("reward-check-end", capsys.readouterr().out)


def test_the_count_of_a_long_command() -> None:
    assert count_text(0, 8000, 0.0) == "0 of 8,000"
    assert count_text(1204, 8000, 3.88) == "1,204 of 8,000 · 310/s · 22 s left"
    assert count_text(1204, 8000, 100.0, first=1000) == "1,204 of 8,000 · 2.0/s · 55 min 31 s left"
    assert count_text(8000, 8000, 3.0) == "8,000 of 8,000"
