"""The lm-eval items in the repository are what the code makes, and are answerable."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from qserve.demo.make_evals import (
    CHOICE_TASKS,
    GENERATE_TASKS,
    ITEMS_PER_TASK,
    choice_items,
    generate_items,
    write_evals,
)
from qserve.demo.tasks import TASKS, held_out_exchanges, is_held_out

FOLDER = Path(__file__).parents[3] / "evals" / "qserve_demo"


def items(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (FOLDER / name).read_text(encoding="utf-8").splitlines()]


def test_the_repository_holds_what_the_code_makes(tmp_path: Path) -> None:
    write_evals(tmp_path)
    for name in ("choice.jsonl", "generate.jsonl", "text.jsonl", "preferences.jsonl"):
        assert (FOLDER / name).read_bytes() == (tmp_path / name).read_bytes()


def test_choices_are_four_different_ones_and_gold_is_right() -> None:
    right = [e.answer for name in CHOICE_TASKS for e in held_out_exchanges(TASKS[name], ITEMS_PER_TASK, seed=2)]
    for item, answer in zip(choice_items(), right, strict=True):
        choices = item["choices"]
        assert isinstance(choices, list)
        assert len(set(choices)) == 4
        assert choices[item["gold"]] == answer


def test_no_position_gives_the_answer_away() -> None:
    golds = [item["gold"] for item in items("choice.jsonl")]
    assert all(0.15 < golds.count(position) / len(golds) < 0.35 for position in range(4))


def test_items_are_held_out() -> None:
    for name in {*CHOICE_TASKS, *GENERATE_TASKS}:
        assert all(is_held_out(name, e.key) for e in held_out_exchanges(TASKS[name], ITEMS_PER_TASK, seed=2))


def test_generate_items_name_their_answer() -> None:
    assert {item["task"] for item in generate_items()} == set(GENERATE_TASKS)
    assert all(
        item["answer"] and item["prompt"].endswith("<|im_start|>assistant\n") for item in items("generate.jsonl")
    )
