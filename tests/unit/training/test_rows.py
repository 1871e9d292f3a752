"""Rows of the formats that trainers have, as TRL's own; and what is said of a row that is none of them."""

from __future__ import annotations

import pytest

from qserve.training.data.rows import RowError, answers_of, preferences_of, prompt_of

USER = {"role": "user", "content": "What is 2+3?"}
GOOD, BAD = {"role": "assistant", "content": "5"}, {"role": "assistant", "content": "6"}
PAIR = {"prompt": [USER], "chosen": [GOOD], "rejected": [BAD]}
SYSTEM = {"role": "system", "content": "Be brief."}


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "What is 2+3?", "chosen": "5", "rejected": "6"},  # OpenRLHF, TRL
        {"prompt": [USER], "chosen": [GOOD], "rejected": [BAD]},  # TRL, conversational
        {"chosen": [USER, GOOD], "rejected": [USER, BAD]},  # TRL, implicit prompt
        {"messages": [USER, GOOD], "rejected_response": "6"},  # ms-swift
        {"instruction": "What is 2+3?", "input": "", "chosen": "5", "rejected": "6"},  # LLaMA-Factory, alpaca
        {
            "conversations": [{"from": "human", "value": "What is 2+3?"}],
            "chosen": {"from": "gpt", "value": "5"},
            "rejected": {"from": "gpt", "value": "6"},
        },  # LLaMA-Factory, sharegpt
    ],
)
def test_a_preference_of_any_format_is_trls(row: dict) -> None:
    assert preferences_of(row) == [PAIR]


def test_margins_and_whole_texts() -> None:
    assert preferences_of({**PAIR, "margin": 2})[0]["margin"] == 2.0
    texts = {"chosen_inputs": "Q 5", "rejected_inputs": "Q 6"}
    assert preferences_of(texts) == [{"chosen": "Q 5", "rejected": "Q 6"}]


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [USER, GOOD]},
        {"prompt": "What is 2+3?", "completion": "5"},
        {"input": "What is 2+3?", "output": "5"},
        {"query": "What is 2+3?", "response": "5"},
        {"instruction": "What is 2+3?", "input": "", "output": "5"},
        {"conversations": [{"from": "human", "value": "What is 2+3?"}, {"from": "gpt", "value": "5"}]},
    ],
)
def test_an_answer_of_any_format_is_trls(row: dict) -> None:
    assert answers_of(row) == [{"prompt": [USER], "completion": [GOOD]}]


def test_every_answer_of_a_conversation_is_trained_on() -> None:
    rows = answers_of({"messages": [SYSTEM, USER, GOOD, USER, BAD]})
    assert rows == [
        {"prompt": [SYSTEM, USER], "completion": [GOOD]},
        {"prompt": [SYSTEM, USER, GOOD, USER], "completion": [BAD]},
    ]


def test_system_and_history_stand_before_the_question() -> None:
    row = {"system": "Be brief.", "history": [["Hi", "Hello"]], "instruction": "What is 2+3?", "output": "5"}
    *_, made = answers_of(row)
    assert [turn["content"] for turn in made["prompt"]] == ["Be brief.", "Hi", "Hello", "What is 2+3?"]


def test_a_prompt_keeps_what_its_answer_is_compared_with() -> None:
    assert prompt_of({"prompt": "What is 2+3?", "answer": 5}) == {"prompt": [USER], "references": "5"}
    assert prompt_of({"messages": [USER, GOOD]}) == {"prompt": [USER], "references": ""}


@pytest.mark.parametrize(
    ("convert", "row", "told"),
    [
        (preferences_of, {"prompt": "p", "chosen": "a"}, "needs chosen and rejected"),
        (preferences_of, {"prompt": "p", "chosen": "a", "rejected": "a"}, "are the same"),
        (preferences_of, {"prompt": "p", "chosen": "", "rejected": "a"}, "empty"),
        (preferences_of, {"chosen": [USER, GOOD], "rejected": [USER]}, "ends|end with|beginning"),
        (answers_of, {"messages": [USER]}, "no answer"),
        (answers_of, {"messages": [{"role": "alien", "content": "x"}]}, "alien"),
        (answers_of, {"messages": [USER, {"role": "assistant", "content": 5}]}, "found int"),
        (answers_of, {"n": 1}, "the row has the one field n; it needs messages"),
        (prompt_of, {"messages": [GOOD]}, "no user's turn"),
        (prompt_of, {}, "no fields"),
    ],
)
def test_what_is_wrong_with_a_row_is_said(convert, row: dict, told: str) -> None:
    with pytest.raises(RowError, match=told):
        convert(row)
