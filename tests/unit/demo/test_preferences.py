"""Preferences: held-out questions stay out, bad answers differ from good ones, the template is the model's."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import jinja2
import pytest

from qserve.demo import chat_model_path
from qserve.demo.preferences import KINDS, conversation_text, held_out_preferences, sample_preference, write_held_out
from qserve.demo.tasks import TASKS
from qserve.reward.evaluation.records import read_records


@pytest.mark.parametrize("system", [None, "Be brief."])
def test_the_text_is_the_chat_template_s(system: str | None) -> None:
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, autoescape=False)
    template = environment.from_string((chat_model_path() / "chat_template.jinja").read_text())
    turns = [{"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "2"}]
    messages = turns if system is None else [{"role": "system", "content": system}, *turns]
    assert conversation_text("1+1?", "2", system) == template.render(messages=messages)


@pytest.mark.parametrize("task", TASKS)
def test_bad_answers_differ_from_the_good_one_and_from_each_other(task: str) -> None:
    rng = Random(0)
    for _ in range(30):
        preference = sample_preference(rng, 3, task=task)
        assert len({preference.chosen, *preference.rejected}) == 4
        assert set(preference.kinds) <= set(KINDS)
        assert all(preference.rejected)


def test_what_is_held_out_is_never_trained() -> None:
    rng = Random(1)
    trained = {(p.task, p.question) for p in (sample_preference(rng, 1) for _ in range(5000))}
    held_out = {(p.task, p.question) for task in TASKS for p in held_out_preferences(task, 100, 1)}
    assert not trained & held_out


def test_the_file_has_a_pair_a_line(tmp_path: Path) -> None:
    write_held_out(tmp_path / "pairs.jsonl", 3)
    records = read_records(tmp_path / "pairs.jsonl")
    assert len(records) == 3 * len(TASKS)
    assert {record.subset for record in records} == set(TASKS)
    assert {record.num_chosen for record in records} == {1}


def test_held_out_preferences_are_the_same_each_time() -> None:
    first, second = (json.dumps([vars(p) for p in held_out_preferences("sort", 20, 5)]) for _ in range(2))
    assert first == second
