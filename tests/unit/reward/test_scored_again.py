"""What was scored is scored again: rows as an input, and --resume of a file that lacks nothing."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from qserve.cli.reward.eval_reward import command as eval_reward
from qserve.cli.reward.rows import answers_of, row_of
from qserve.cli.reward.score import command as score
from qserve.errors import UnusableResult
from qserve.reward.evaluation.records import Record
from tests.unit.evaluation.answering import answering

COMMANDS = {"score": score, "eval-reward": eval_reward}
PAIRS: list[dict[str, Any]] = [{"id": index, "prompt": "p", "chosen": "ab", "rejected": "c"} for index in range(5)]
SCORED = {"reward": 1.0, "num_tokens": 3}
REFUSED = {"error": "it is too long"}


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QSERVE_STATE_DIR", str(tmp_path / "state"))


def rewards_of(path: str, body: Any) -> tuple[int, Any]:
    texts = [one[-1]["content"] for one in body["conversations"]]
    return 200, {"data": [{"reward": float(len(text)), "num_tokens": 1} for text in texts]}


def call(name: str, *arguments: str) -> None:
    COMMANDS[name].main(list(arguments), standalone_mode=False)


def pair(data: dict[str, Any]) -> Record:
    return Record(1, ("a", "b"), 1, None, data)


def test_a_row_says_nothing_of_an_earlier_scoring() -> None:
    data = {"prompt": "p", "chosen": "a", "rejected": "b"}
    failed = row_of(pair(data), [SCORED, REFUSED])
    assert failed == {**data, **REFUSED}
    scored = row_of(pair(failed), [{**SCORED, "attributes": {"form": 1.0}}] * 2)
    assert "error" not in scored and scored["margin"] == 0.0
    assert row_of(pair(scored), [REFUSED] * 2) == failed
    assert answers_of(row_of(pair(scored), [SCORED] * 2)) == [SCORED] * 2


def test_lines_that_failed_before_are_scored(tmp_path: Path) -> None:
    file, out = tmp_path / "rows.jsonl", tmp_path / "again.jsonl"
    file.write_text("".join(json.dumps({**one, "error": "the server was full"}) + "\n" for one in PAIRS))
    with answering(rewards_of) as url:
        call("score", str(file), "--url", url, "--output", str(out))
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["id"] for row in rows] == list(range(5)) and not any("error" in row for row in rows)


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("num_kept", [5, 7])
def test_a_run_with_nothing_left_to_score_ends(name: str, num_kept: int, tmp_path: Path) -> None:
    """All rows are there and the run was interrupted before its end; or two lines are left that can't be read."""
    file, out = tmp_path / "pairs.jsonl", tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(one) + "\n" for one in PAIRS) + "{\n" * 2)
    note = tmp_path / "rows.jsonl.resume.json"
    with answering(rewards_of) as url:
        arguments = (name, str(file), "--url", url, "--output", str(out))
        with pytest.raises(UnusableResult, match="2 of 7 lines could not be scored"):
            call(*arguments)
        whole = out.read_text()
        out.write_text("".join(whole.splitlines(keepends=True)[:num_kept]))
        about = {"the input": _content(file), "--url": url} | ({"--normalize": False} if name == "score" else {})
        note.write_text(json.dumps({"about": about, "meta": None}))
        with pytest.raises(UnusableResult, match="2 of 7 lines could not be scored"):
            call(*arguments, "--resume")
    assert out.read_text() == whole and not note.exists()


def _content(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
