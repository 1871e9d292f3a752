"""Turns as templates take them, marks of what is trained on, and fields that nothing reads."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from qserve.rows.fields import Fields, RowError, told_unread
from qserve.rows.human import turns_in
from qserve.rows.tools import template_fields_of
from qserve.rows.turns import messages_of, turns_of
from qserve.training.data.rows import answers_of, preferences_of, prompt_of
from qserve.training.data.scores import scored_of
from tests.unit.rows.forms import TOOLS, answer, call, user

CALLED = call({"a": 1})
OPENAI = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}


def read(*turns: dict[str, Any]) -> list[dict[str, Any]]:
    found = turns_of(list(turns), Fields({}))
    assert found is not None
    return messages_of(found)


@pytest.mark.parametrize(
    "turn",
    [
        {"role": "assistant", "content": None, "tool_calls": [{**OPENAI, "id": None}]},
        {"role": "assistant", "tool_calls": [{"name": "add", "arguments": {"a": 1}}]},
        {"role": "assistant", "content": "", "tool_calls": json.dumps([{"name": "add", "arguments": {"a": 1}}])},
        {"role": "assistant", "content": None, "function_call": {"name": "add", "arguments": '{"a": 1}'}},
        {"from": "function_call", "value": '{"name": "add", "arguments": {"a": 1}}'},
        {"role": "tool_call", "content": '{"name": "add", "arguments": {"a": 1}}'},
    ],
)
def test_an_answer_that_only_calls_is_a_call(turn: dict[str, Any]) -> None:
    assert read(user("q"), turn)[1] == CALLED


def test_a_turn_keeps_what_a_template_may_write() -> None:
    said = {"role": "assistant", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
    assert read(said) == [answer("ab")]
    assert read({**answer("a"), "reasoning": "hm"}) == [{**answer("a"), "reasoning_content": "hm"}]
    tool = {"role": "tool", "content": "5", "name": "add", "tool_call_id": "c1"}
    assert read(tool) == [tool]
    assert read({"from": "observation", "value": "5"}) == [{"role": "tool", "content": "5"}]
    assert read({"role": "developer", "content": "s"}) == [{"role": "system", "content": "s"}]
    assert read({"human": "q", "assistant": "a"}) == [user("q"), answer("a")]


def test_what_is_said_before_a_call_is_of_its_turn() -> None:
    asked = {"role": "tool_call", "content": '{"name": "add", "arguments": {"a": 1}}'}
    (_, made) = read(user("q"), answer("Let me see."), asked)
    assert made["content"] == "Let me see." and made["tool_calls"] == CALLED["tool_calls"]
    (_, both) = read(user("q"), asked, asked)
    assert len(both["tool_calls"]) == 2


@pytest.mark.parametrize(
    ("turn", "told"),
    [
        ({"role": "assistant", "content": None}, "found null"),
        ({"role": "user", "content": "q", "tool_calls": [OPENAI]}, "role 'user' calls tools"),
        ({"role": "assistant", "tool_calls": [{"function": {"arguments": {}}}]}, "a call has no name"),
        ({"role": "assistant", "tool_calls": [{"name": "add", "arguments": "[1]"}]}, "must be an object"),
        (
            {"role": "assistant", "tool_calls": [{"name": "add", "arguments": "{a"}]},
            "'arguments' is a text that is not",
        ),
        ({"role": "assistant", "tool_calls": "calls"}, "'tool_calls' is a text that is not JSON"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, "a part of type 'image_url'"),
        (
            {"role": "assistant", "content": "a", "reasoning_content": [1]},
            "thought of a turn must be a text; found list",
        ),
    ],
)
def test_what_no_template_takes_is_said(turn: dict[str, Any], told: str) -> None:
    with pytest.raises(RowError, match=told):
        read(turn)


@pytest.mark.parametrize("tools", [TOOLS, json.dumps(TOOLS), [TOOLS[0]["function"]], json.dumps(TOOLS[0]), TOOLS[0]])
def test_tools_of_any_form_are_a_list_of_functions(tools: Any) -> None:
    assert template_fields_of(Fields({"tools": tools})) == {"tools": TOOLS}
    assert template_fields_of(Fields({"functions": [TOOLS[0]["function"]]})) == {"tools": TOOLS}


@pytest.mark.parametrize("nothing", [{}, {"tools": None}, {"tools": []}, {"tools": ""}, {"tools": "[]"}])
def test_no_tools_are_none(nothing: dict[str, Any]) -> None:
    assert template_fields_of(Fields(nothing)) == {}


def test_variables_of_the_template_go_with_the_row() -> None:
    for given in ({"enable_thinking": False}, '{"enable_thinking": false}'):
        assert template_fields_of(Fields({"chat_template_kwargs": given})) == {
            "chat_template_kwargs": {"enable_thinking": False}
        }
    with pytest.raises(RowError, match="'images' has a value, but only text is read"):
        template_fields_of(Fields({"images": ["a.png"]}))


TALK = [user("q"), CALLED, {"role": "tool", "content": "5"}, answer("five")]


def test_every_method_carries_tools_to_the_template() -> None:
    template_fields = {"tools": TOOLS, "chat_template_kwargs": {"enable_thinking": False}}
    rows = answers_of({"messages": TALK, **template_fields})
    assert [row["completion"] for row in rows] == [[CALLED], [answer("five")]]
    pair = preferences_of({"prompt": [user("q")], "chosen": TALK[1:], "rejected": "six", **template_fields})[0]
    scored = scored_of({"messages": TALK, "scores": [1.0], **template_fields}, ("good",))
    for row in (*rows, pair, scored):
        assert {name: row[name] for name in template_fields} == template_fields
    with pytest.raises(RowError, match="tools and chat_template_kwargs, which TRL's GRPO takes per run"):
        prompt_of({"prompt": "q", **template_fields})
    assert prompt_of({"messages": TALK})["prompt"] == TALK[:3]


MASKED = [{"weight": 0}, {"weight": 0.0}, {"loss": False}, {"train": False}, {"training": False}, {"loss_weight": 0.0}]
TRAINED = [{"weight": 1}, {"loss": True}, {"train": True}, {"weight": None}, {}]


@pytest.mark.parametrize("mark", MASKED)
def test_a_masked_answer_is_read_and_not_trained_on(mark: dict[str, Any]) -> None:
    turns = [user("q"), {**answer("a"), **mark}, user("r"), answer("b")]
    (row,) = answers_of({"messages": turns})
    assert row == {"prompt": [user("q"), answer("a"), user("r")], "completion": [answer("b")]}
    assert answers_of({"messages": turns[:2]}) == []
    assert answers_of({"prompt": "q", "completion": [turns[1]]}) == []
    as_sharegpt = [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a", **mark}]
    assert answers_of({"conversations": as_sharegpt}) == []


@pytest.mark.parametrize("mark", TRAINED)
def test_a_mark_that_says_yes_changes_nothing(mark: dict[str, Any]) -> None:
    assert len(answers_of({"messages": [user("q"), {**answer("a"), **mark}]})) == 1


def test_a_row_s_own_weight() -> None:
    row = {"messages": [user("q"), answer("a")]}
    assert answers_of({**row, "weight": 0}) == [] and len(answers_of({**row, "weight": 1})) == 1
    with pytest.raises(RowError, match=r"'weight' of a row is 0\.5"):
        answers_of({**row, "weight": 0.5})


@pytest.mark.parametrize(
    ("turn", "told"),
    [
        ({**answer("a"), "weight": 0.5}, r"'weight' of a turn is 0\.5; it is 0 or false"),
        ({**answer("a"), "loss": "yes"}, "'loss' of a turn is 'yes'"),
        ({**answer("a"), "train": 2}, "'train' of a turn is 2"),
        ({**answer("a"), "train": False, "weight": 1}, "disagree"),
        ({**answer("a"), "train_detail": [{"begin_offset": 0, "end_offset": 1, "train": False}]}, "'train_detail'"),
        ({**user("a"), "train": True}, "only the assistant's turns are trained on"),
    ],
)
def test_any_other_mark_is_refused_by_name(turn: dict[str, Any], told: str) -> None:
    with pytest.raises(RowError, match=told):
        answers_of({"messages": [user("q"), answer("a"), turn]})


def test_a_prompt_s_own_answers_are_not_trained_on() -> None:
    """TRL's prompt and completion: what stands in the prompt is given."""
    (row,) = answers_of({"prompt": [user("q"), answer("a"), user("r")], "completion": [answer("b")]})
    assert row["completion"] == [answer("b")]


def test_an_empty_answer_is_none() -> None:
    with pytest.raises(RowError, match="an answer is empty"):
        answers_of({"messages": [user("q"), answer("")]})


READERS = {
    "sft": (answers_of, {"messages": [user("q"), answer("a")]}),
    "pairs": (preferences_of, {"prompt": "q", "chosen": "a", "rejected": "b"}),
    "grpo": (prompt_of, {"prompt": "q", "answer": "5"}),
    "scores": (lambda row, unread: scored_of(row, ("good",), unread), {"prompt": "q", "response": "a", "scores": [1]}),
}


@pytest.mark.parametrize("name", READERS)
def test_every_field_is_read_or_harmless_or_named_with_its_count(name: str) -> None:
    convert, row = READERS[name]
    unread: Counter[str] = Counter()
    convert(row, unread)
    assert not unread
    for _ in range(3):
        convert({**row, "id": 7, "source": "s", "whatever": 1, "nothing": None}, unread)
    assert unread == {"'whatever'": 3}
    assert told_unread(unread) == "fields that are not read: 'whatever' 3×"


def test_fields_of_turns_calls_and_parts_are_named_too() -> None:
    unread: Counter[str] = Counter()
    parts = {"role": "user", "content": [{"type": "text", "text": "q", "cache_control": {}}]}
    called = {"role": "assistant", "tool_calls": [{**OPENAI, "strange": 1}], "mood": "good", "id": "x"}
    answers_of({"messages": [parts, called], "text": "unused"}, unread)
    assert unread == {"'text'": 1, "a turn's 'mood'": 1, "a call's 'strange'": 1, "a part's 'cache_control'": 1}
    assert told_unread({}) is None


def test_texts_that_are_no_conversation_are_texts() -> None:
    for text in ("", "Human: q", "Assistant: a", "q\n\nHuman: b\n\nAssistant: c", "Human: q\nAssistant: a"):
        assert turns_in(text) is None
    assert [turn.message for turn in turns_in("\n\nHuman: q\n\nAssistant: a\n\nb") or ()] == [
        user("q"),
        answer("a\n\nb"),
    ]
