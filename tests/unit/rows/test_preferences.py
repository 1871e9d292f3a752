"""Preferences of every form, by every reader: the same turns, and the same words for what none of them reads."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qserve.errors import UsageError
from qserve.reward.evaluation.records import read_records
from qserve.reward.protocols.job import ModelInfo
from qserve.reward.protocols.table import PROTOCOLS
from qserve.rows.fields import Fields, RowError
from qserve.rows.preference import preference_of
from qserve.training.data.rows import Tie, preferences_of
from qserve.wire.errors import ApiError
from tests.unit.rows.forms import FORMS, Meant, answer, call, preferences, user

_OF_PAIRS = {"prompt", "chosen", "rejected", "tools", "chat_template_kwargs"}
GOOD, BAD = answer("5"), answer("6")
ASKED = user("2+3?")


def records_of(row: dict[str, Any]) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows.jsonl"
        file.write_text(json.dumps(row) + "\n")
        return read_records(file)[0]


def served(pair: dict[str, Any]) -> list[Any]:
    """What /v1/reward scores of a pair, as JSON has it."""
    protocol = PROTOCOLS["/v1/reward"]
    job = protocol.job(protocol.schema.parse(json.dumps({"pairs": [pair]}).encode()), ModelInfo("rm", {}))
    return [json.loads(json.dumps(text.content)) for text in job.texts]


def whole(meant: Meant, side: list[dict[str, Any]]) -> Any:
    messages = meant.prompt + side
    return {"messages": messages, **meant.beside} if meant.beside else messages


def without_ids(value: Any) -> Any:
    """A call's id, which templates do not write, is of OpenAI's form alone."""
    if isinstance(value, dict):
        return {name: without_ids(one) for name, one in value.items() if name != "id"}
    return [without_ids(one) for one in value] if isinstance(value, list) else value


@given(preferences(), st.sampled_from(sorted(FORMS)))
def test_every_reader_makes_the_same_of_every_form(meant: Meant, form: str) -> None:
    suits, row_of = FORMS[form]
    if not suits(meant):
        return
    row = row_of(meant)
    sides = [whole(meant, meant.chosen), whole(meant, meant.rejected)]
    (made,) = without_ids(preferences_of(row))
    assert made["prompt"] + made["chosen"] == meant.prompt + meant.chosen
    assert made["prompt"] + made["rejected"] == meant.prompt + meant.rejected
    assert {name: made[name] for name in ("tools",) if name in made} == meant.beside
    record = records_of(row)
    assert (without_ids(list(record.contents)), record.num_chosen) == (sides, 1)
    if set(row) <= _OF_PAIRS:
        assert without_ids(served(row)) == sides


@given(preferences())
def test_the_prompt_of_whole_conversations_is_what_they_share(meant: Meant) -> None:
    (made,) = preferences_of(FORMS["whole conversations"][1](meant))
    assert (made["prompt"], made["chosen"], made["rejected"]) == (meant.prompt, meant.chosen, meant.rejected)


REFUSED: dict[str, dict[str, Any]] = {
    "an empty answer": {"prompt": "q", "chosen": "a", "rejected": " "},
    "no answer at the end": {"prompt": "q", "chosen": [ASKED], "rejected": [ASKED, BAD]},
    "another question": {"chosen": [ASKED, GOOD], "rejected": [user("3+3?"), BAD]},
    "another prompt beside": {"prompt": "other", "chosen": [ASKED, GOOD], "rejected": [ASKED, BAD]},
    "an answer in the prompt": {"prompt": [ASKED, GOOD], "chosen": "5", "rejected": "6"},
    "an empty prompt": {"prompt": "", "chosen": "5", "rejected": "6"},
    "no tool": {"prompt": "q", "chosen": "5", "rejected": "6", "tools": [{"a": 1}]},
    "no variable": {"prompt": "q", "chosen": "5", "rejected": "6", "chat_template_kwargs": {"tokenize": True}},
    "tools of whole texts": {"chosen": "q 5", "rejected": "q 6", "tools": [{"name": "add"}]},
}


def words(read: Callable[[dict[str, Any]], Any], row: dict[str, Any]) -> str:
    with pytest.raises((UsageError, ApiError, RowError)) as told:
        read(row)
    assert getattr(told.value, "status", 400) == 400
    text = str(told.value)
    return text.rpartition("line 1: ")[2].replace("pairs.0.", "").replace("'pairs.0': ", "")


@pytest.mark.parametrize("name", REFUSED)
def test_what_one_refuses_all_refuse_with_the_same_words(name: str) -> None:
    row = REFUSED[name]
    said = words(preferences_of, row)
    assert words(records_of, row) == said
    assert words(served, row) == said


def test_a_row_says_which_field_is_wrong() -> None:
    with pytest.raises(RowError) as told:
        preference_of(Fields(REFUSED["an empty answer"]))
    assert (told.value.field, told.value.code) == ("rejected", "empty_input")
    with pytest.raises(RowError, match="needs chosen and rejected"):
        preference_of(Fields({"prompt": "q", "chosen": "5"}))
    with pytest.raises(RowError, match="marked as left out of the loss"):
        preference_of(Fields({"prompt": "q", "chosen": [{**GOOD, "weight": 0}], "rejected": [BAD]}))
    assert preference_of(Fields({"messages": [ASKED, GOOD]})) is None


def test_the_prompt_of_ultrafeedback_is_not_doubled() -> None:
    row = {
        "prompt": ASKED["content"],
        "prompt_id": "7",
        "messages": [ASKED, GOOD],
        "chosen": [ASKED, GOOD],
        "rejected": [ASKED, BAD],
        "score_chosen": 9.0,
        "score_rejected": 1.0,
    }
    fields = Fields(row)
    found = preference_of(fields)
    assert found is not None and (found.prompt, found.chosen, found.rejected) == ([ASKED], ([GOOD],), ([BAD],))
    assert not fields.unread


def test_a_system_prompt_stands_before_whole_conversations_once() -> None:
    system = {"role": "system", "content": "Be brief."}
    beside = {"system": "Be brief.", "chosen": [ASKED, GOOD], "rejected": [ASKED, BAD]}
    within = {"system": "Be brief.", "chosen": [system, ASKED, GOOD], "rejected": [system, ASKED, BAD]}
    for row in (beside, within, {**beside, "prompt": "2+3?"}):
        assert preferences_of(row)[0]["prompt"] == [system, ASKED]


def test_a_written_conversation_s_answer_may_stand_beside_it() -> None:
    """Dahoas/full-hh-rlhf: what begins after "Assistant:" is an answer, blank and all."""
    row = {"prompt": "\n\nHuman: 2+3?\n\nAssistant:", "chosen": " 5", "rejected": " 6"}
    assert preferences_of(row) == [{"prompt": [ASKED], "chosen": [GOOD], "rejected": [BAD]}]


def test_whole_texts_are_scored_as_they_are_trained() -> None:
    for row in ({"chosen": "q 5", "rejected": "q 6"}, {"chosen_inputs": "q 5", "rejected_inputs": "q 6"}):
        assert preferences_of(row) == [{"chosen": "q 5", "rejected": "q 6"}]
        ended = [{"text": text, "add_eos": True} for text in ("q 5", "q 6")]
        assert list(records_of(row).contents) == ended
    assert served({"chosen": "q 5", "rejected": "q 6"}) == ended


def test_several_answers_are_scored_together_and_trained_as_pairs() -> None:
    row = {"prompt": "2+3?", "chosen": ["5", "five"], "rejected": ["6"]}
    assert [one["chosen"][0]["content"] for one in preferences_of(row)] == ["5", "five"]
    assert records_of(row).num_chosen == 2


@pytest.mark.parametrize("row", [{"prompt": "q", "chosen": "5", "rejected": "5"}, {"chosen": "q 5", "rejected": "q 5"}])
def test_equal_sides_are_a_tie(row: dict[str, Any]) -> None:
    with pytest.raises(Tie, match="are the same"):
        preferences_of(row)
    assert records_of(row).alike([0.5, 0.500001]) == [0.5, 0.5]


@pytest.mark.parametrize(
    ("row", "told"),
    [
        (
            {"prompt": "q", "response_1": "5", "response_2": "6", "preference_strength": 0},
            "neither answer is preferred",
        ),
        ({"prompt": "q", "response_0": "5", "response_1": "6", "better_response_id": 2}, "is 2; it must be 0 or 1"),
        ({"conversation_a": [ASKED, GOOD], "conversation_b": [ASKED, BAD], "winner": "tie"}, "is 'tie'"),
        ({"messages": [ASKED], "rejected_response": "6"}, "ends with the chosen answer"),
    ],
)
def test_what_prefers_neither_is_said(row: dict[str, Any], told: str) -> None:
    with pytest.raises(RowError, match=told):
        preferences_of(row)
    with pytest.raises(UsageError, match=told):
        records_of(row)


def test_a_rejected_conversation_may_differ_earlier() -> None:
    row = {
        "messages": [ASKED, call({"a": 1}), {"role": "tool", "content": "5"}, GOOD],
        "rejected_messages": [ASKED, BAD],
    }
    (made,) = preferences_of(row)
    assert (made["prompt"], len(made["chosen"]), made["rejected"]) == ([ASKED], 3, [BAD])
