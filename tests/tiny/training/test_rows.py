"""Rows with tools, marks and whole conversations, by TRL's own trainers: what is in their labels and tokens."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from datasets import load_dataset
from transformers import AutoTokenizer

from qserve.demo import chat_model_path, reward_model_path
from qserve.reward.checkpoints import recognise
from qserve.reward.evaluation.records import read_records
from qserve.reward.protocols.job import ModelInfo
from qserve.reward.protocols.table import PROTOCOLS
from qserve.reward.scoring.template import RewardTemplate
from qserve.reward.settings import RewardSettings
from qserve.training.data.prepare import prepare
from qserve.training.job import DataSource
from tests.tiny.training.rows import PAIRS, TEXTS
from tests.unit.rows.forms import TOOLS, call, user

ROOT = Path(__file__).parents[3]
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 2}}\n</tool_call><|im_end|>\n'
OTHER_CALL = '<tool_call>\n{"name": "add", "arguments": {"b": [7], "c": null}}\n</tool_call><|im_end|>\n'


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("rows")
    done = subprocess.run(
        [sys.executable, "-m", "tests.tiny.training.rows", str(folder)],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    read: dict[str, Any] = json.loads((folder / "made.json").read_text())
    return read


def test_calls_are_trained_as_calls_and_masked_answers_are_read_alone(made: dict[str, Any]) -> None:
    labels = [row["trained"] for row in made["sft"]]
    assert labels == [CALL, OTHER_CALL, "seven<|im_end|>\n", "eight<|im_end|>\n", "Hello<|im_end|>\n"]
    first, second, *_ = (row["text"] for row in made["sft"])
    assert "add(a)" in first and "multiply" not in first  # each row has its own tools
    assert "multiply(b, c)" in second and "add(a)" not in second
    assert "nine" in made["sft"][3]["text"] and not any("three" in row["text"] for row in made["sft"])


def test_a_row_far_down_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    """`datasets` infers types from the first 10 MB, and would drop or refuse what comes after them alone."""
    plain = {"prompt": "q" * 2_000_000, "completion": "a"}
    rows = [plain] * 6 + [{"messages": [user("2+3?"), call({"a": 2, "b": None})], "tools": TOOLS}]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    prepare(DataSource(str(file), eval_share=0), "sft", tmp_path / "data", tmp_path / "run")
    made = load_dataset(str(tmp_path / "data"), cache_dir=str(tmp_path / "cache"))["train"]
    assert made[-1]["completion"] == [call({"a": 2, "b": None})] and made[-1]["tools"] == TOOLS
    assert made[0]["prompt"] == [user(plain["prompt"])] and made[0]["tools"] is None


def test_packed_rows_keep_their_masks(made: dict[str, Any]) -> None:
    together = "".join(row["trained"] for row in made["packed"])
    assert sorted(together) == sorted("".join(row["trained"] for row in made["sft"]))


def host() -> RewardTemplate:
    """As the reward host makes tokens, over the tokenizer that is trained with."""
    tokenizer, given = AutoTokenizer.from_pretrained(chat_model_path()), RewardSettings()
    checkpoint = recognise(reward_model_path(), given)
    file = chat_model_path() / "chat_template.jinja"
    return RewardTemplate(tokenizer, checkpoint, RewardSettings(template=str(file)), 256)


def scored(rows: list[dict[str, Any]], folder: Path) -> list[list[list[int]]]:
    """Token ids of both sides of each row, as `qserve score` and `eval-reward` make them."""
    file, template = folder / "pairs.jsonl", host()
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return [[template.encode(content).token_ids for content in record.contents] for record in read_records(file)]


def served(rows: list[dict[str, Any]]) -> list[list[int]]:
    """The same of POST /v1/reward."""
    protocol, template = PROTOCOLS["/v1/reward"], host()
    job = protocol.job(protocol.schema.parse(json.dumps({"pairs": rows}).encode()), ModelInfo("rm", {}))
    return [template.encode(text.content).token_ids for text in job.texts]


def test_every_reader_makes_the_same_tokens(made: dict[str, Any], tmp_path: Path) -> None:
    by_score = scored(PAIRS, tmp_path)
    assert served(PAIRS) == [ids for sides in by_score for ids in sides]
    without_tie = by_score[:-1]
    rewards = [[row["chosen_ids"], row["rejected_ids"]] for row in made["reward"]["rows"]]
    assert rewards == without_tie
    dpo = [[row["prompt_ids"] + row[side] for side in ("chosen_ids", "rejected_ids")] for row in made["dpo"]["rows"]]
    assert dpo == without_tie


def test_whole_texts_are_the_same_tokens_too(made: dict[str, Any], tmp_path: Path) -> None:
    rewards = [[row["chosen_ids"], row["rejected_ids"]] for row in made["texts"]["rows"]]
    assert rewards == scored(TEXTS, tmp_path)
    assert [ids for sides in rewards for ids in sides] == served(TEXTS)


@pytest.mark.parametrize("method", ["dpo", "reward"])
def test_sides_of_the_same_tokens_are_a_tie_and_in_no_loss(made: dict[str, Any], tmp_path: Path, method: str) -> None:
    chosen, rejected = scored(PAIRS[-1:], tmp_path)[0]
    assert chosen == rejected  # the demo's template leaves thoughts out
    assert made[method]["num_ties"] == 1 and len(made[method]["rows"]) == len(PAIRS) - 1
