"""The planner answers as it did: a part of the kept requests; `python scripts/golden_plans.py` asks all of them."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from tests.golden.plans.answers import answer, is_as_kept, kept, machine

_STEP, _STEP_OF_REFUSED = 4, 12
_NOTHING_FITS = 3  # dear to answer: a search for what would fit follows


def test_plans_are_the_kept_ones() -> None:
    answers = kept()
    refused = [line for line, was in answers.items() if was["status"] == _NOTHING_FITS]
    others = [line for line in answers if line not in refused]
    asked = [*others[::_STEP], *refused[::_STEP_OF_REFUSED]]
    with machine():
        differing = [line for line in asked if not is_as_kept(answers[line], answer(line))]
    assert not differing, "`python scripts/golden_plans.py` shows what differs; --write keeps it, where it is meant"


def test_the_kept_plans_are_of_every_kind() -> None:
    answers = kept()
    statuses = [one["status"] for one in answers.values()]
    assert len(answers) >= 600
    assert all(statuses.count(status) >= 50 for status in (0, 2, 3))
    engines = {one["plan"].get("engine") for one in answers.values() if one["plan"]}
    assert engines >= {"vllm", "transformers"}


def test_no_kept_plan_holds_a_path_of_the_machine_that_kept_it() -> None:
    folders = (str(Path(__file__).parents[2]), str(Path.home()), tempfile.gettempdir())
    assert [line for line, one in kept().items() if any(f"{folder}/" in json.dumps(one) for folder in folders)] == []
