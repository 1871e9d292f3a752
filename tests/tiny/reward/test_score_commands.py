"""The commands over real checkpoints: what they write, what they say, their exit status."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from qserve.cli.reward.command import command as reward
from qserve.cli.reward.eval_reward import command as eval_reward
from qserve.cli.reward.score import command as score
from qserve.errors import UnusableResult
from qserve.reward.items import ScoreItem
from qserve.runs import RunStore
from qserve.state_folder import state_folder
from tests.tiny.reward.conftest import Opener

USER = {"role": "user", "content": "What is 1+1?"}


def turn(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


LINES: list[dict[str, Any]] = [
    {"id": "a", "messages": [USER, turn("2")]},
    {"text": "templated already"},
    {"prompt": "What is 1+1?", "response": "2"},
    {"prompt": "What is 1+1?", "responses": ["2", "3", "eleven"]},
    {"prompt": "What is 1+1?", "chosen": "2", "rejected": "3", "subset": "sums"},
]


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run store of the test's own."""
    monkeypatch.setenv("QSERVE_STATE_DIR", str(tmp_path / "state"))
    return tmp_path / "state"


def kept(state: Path) -> dict[str, Any]:
    """The one result in the store."""
    (found,) = RunStore.open(state_folder(state)).evals()
    return dict(found.document)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "texts.jsonl"
    path.write_text("\n".join(map(json.dumps, LINES)) + "\n")
    return path


def run(command: Any, *arguments: str) -> Result:
    return CliRunner().invoke(command, list(arguments), catch_exceptions=True)


def truth(opened: Opener, contents: list[Any]) -> list[float]:
    scorer = opened("sequence-classification")
    items = [ScoreItem(scorer.template.encode(content).token_ids) for content in contents]
    return [outcome.reward for outcome in scorer.score_now(items)]


def test_score_writes_each_line_with_its_rewards(
    file: Path, tmp_path: Path, made: Callable[[str], Path], opened: Opener
) -> None:
    model = str(made("sequence-classification"))
    done = run(score, str(file), "--reward", model, "--dtype", "float32", "--output", str(tmp_path / "out.jsonl"))
    assert done.exit_code == 0, done.output
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    two, three, eleven, text = truth(
        opened, [*([USER, turn(answer)] for answer in ("2", "3", "eleven")), "templated already"]
    )
    assert [line["id"] for line in lines if "id" in line] == ["a"]
    assert [line["reward"] for line in lines[:3]] == pytest.approx([two, text, two], abs=1e-5)
    assert lines[3]["rewards"] == pytest.approx([two, three, eleven], abs=1e-5)
    assert lines[3]["ranking"] == sorted(range(3), key=lambda index: -lines[3]["rewards"][index])
    assert lines[4]["margin"] == pytest.approx(two - three, abs=1e-5)
    assert "8 texts" in done.output
    assert "pooling not-pad" in done.output


def test_a_line_that_can_t_be_scored_harms_no_other(file: Path, made: Callable[[str], Path], opened: Opener) -> None:
    model = str(made("sequence-classification"))
    longest = len(opened("sequence-classification").template.encode([USER, turn("2")]).token_ids)
    done = run(score, str(file), "--reward", model, "--dtype", "float32", "--max-length", str(longest))
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    failed = [index for index, line in enumerate(lines) if "error" in line]
    assert isinstance(done.exception, UnusableResult) and done.exception.exit_status == 6
    assert failed
    assert len(failed) < len(lines)
    assert "max_length" in lines[failed[0]]["error"]
    assert next(line["reward"] for line in lines if "reward" in line) == pytest.approx(
        truth(opened, [[USER, turn("2")]])[0], abs=1e-5
    )


def test_normalize_is_for_checkpoints_that_record_mean_and_deviation(file: Path, made: Callable[[str], Path]) -> None:
    plain = run(score, str(file), "--reward", str(made("openrlhf")), "--dtype", "float32")
    scaled = run(score, str(file), "--reward", str(made("openrlhf")), "--dtype", "float32", "--normalize")
    first, second = (json.loads(done.stdout.splitlines()[0])["reward"] for done in (plain, scaled))
    assert second == pytest.approx((first - 0.25) / 1.5, abs=1e-5)
    refused = run(score, str(file), "--reward", str(made("sequence-classification")), "--normalize")
    assert "records no mean" in str(refused.exception)


@pytest.mark.parametrize("kind", ["sequence-classification", "process-reward-model", "multi-attribute"])
def test_check_holds_scores_against_plain_transformers(
    kind: str, tmp_path: Path, state: Path, made: Callable[[str], Path]
) -> None:
    file = tmp_path / "pairs.jsonl"
    steps = "1+1<extra_0> is {}<extra_0>"
    lines = [{"prompt": "q", "chosen": steps.format(n), "rejected": steps.format(-n)} for n in range(6)]
    file.write_text("\n".join(map(json.dumps, lines)) + "\n")
    done = run(reward, "check", str(file), "--reward", str(made(kind)), "--dtype", "float32", "--quants", "fp32")
    assert done.exit_code == 0, done.output
    found = kept(state)["quantizations"]["fp32"]
    assert (found["num_texts"], found["num_flipped"]) == (12, 0)
    assert found["largest_difference"] < 1e-5
    assert found["rank_correlation"] == pytest.approx(1.0)
    assert found["meta"]["template_hash"]
    labels = found.get("labels", {})
    assert len(labels) == (5 if kind == "multi-attribute" else 0)
    assert all(one["num_texts"] == 12 and one["largest_difference"] < 1e-5 for one in labels.values())
    assert "12 texts against plain transformers" in done.output
    assert kept(state)["kind"] == "reward check"


def test_eval_reward_reports_by_subset(
    tmp_path: Path, state: Path, made: Callable[[str], Path], opened: Opener
) -> None:
    file = tmp_path / "pairs.jsonl"
    answers = [("2", "3"), ("3", "2"), ("eleven", "2"), ("2", "2")]
    lines = [
        {"prompt": USER["content"], "chosen": good, "rejected": bad, "subset": f"s{index % 2}"}
        for index, (good, bad) in enumerate(answers)
    ]
    file.write_text("\n".join(map(json.dumps, lines)) + "\n")
    model = str(made("sequence-classification"))
    done = run(eval_reward, str(file), "--reward", model, "--dtype", "float32")
    assert done.exit_code == 0, done.output
    texts = ["2", "3", "eleven"]
    by_text = dict(zip(texts, truth(opened, [[USER, turn(text)] for text in texts]), strict=True))
    right = sum(by_text[good] > by_text[bad] for good, bad in answers)
    found = kept(state)
    assert (found["overall"]["num_asked"], found["overall"]["num_right"]) == (4, right)
    assert found["overall"]["num_tied"] == 1
    assert found["kind"] == "reward preferences"
    assert sum(one["count"] for one in found["calibration"]["bins"]) == 4
    assert found["length_bias"]["num_longer"] + found["length_bias"]["num_shorter"] <= 4
    assert "Calibration" in done.output and "rank correlation of reward and tokens" in done.output
    assert "Margins" in done.output
    assert "s1" in done.output


@pytest.mark.parametrize(
    "line",
    [
        {"prompt": "What is 1+1?", "response": ""},
        {"messages": [USER, turn("")]},
        {"messages": [USER]},
        {"prompt": "What is 1+1?", "responses": ["2", ""]},
    ],
)
def test_an_empty_answer_is_refused_as_the_server_refuses_it(
    line: dict[str, Any], tmp_path: Path, made: Callable[[str], Path]
) -> None:
    path = tmp_path / "empty.jsonl"
    path.write_text(json.dumps(line) + "\n" + json.dumps(LINES[2]) + "\n")
    result = run(score, str(path), "--reward", str(made("sequence-classification")))
    assert isinstance(result.exception, UnusableResult)
    refused, scored = map(json.loads, result.stdout.splitlines())
    assert "nothing to score" in refused["error"] or "must be the assistant's" in refused["error"]
    assert isinstance(scored["reward"], float)
