"""The questions: right, the same on every machine, and split so that training never sees what is measured."""

from __future__ import annotations

import re
from random import Random

import pytest

from qserve.demo.about import DECLINE
from qserve.demo.conversations import sample_conversation
from qserve.demo.tasks import TASKS, Exchange, held_out_exchanges, is_held_out, sample_exchange

SAMPLES = 300


def numbers(text: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", text)]


def words_of(exchange: Exchange) -> list[str]:
    return exchange.question.split(": ", 1)[1].replace(",", "").split()


def right_answer(exchange: Exchange) -> str:
    """The answer, worked out from the question's text alone, by other code than the one that made it."""
    question = exchange.question.lower()
    match exchange.task:
        case "add_1digit" | "add_2digit" | "add_3digit":
            return str(sum(numbers(question)))
        case "subtract_2digit":
            a, b = numbers(question)
            return str(b - a if re.search(r"(subtract|take) \d+ from", question) else a - b)
        case "compare":
            wants_large = re.search(r"larger|bigger|greater|max", question)
            return str(sorted(numbers(question))[1 if wants_large else 0])
        case "compare_yes_no":
            a, b = numbers(question)
            wants_large = re.search(r"larger|bigger|greater|more|>", question)
            return "Yes." if (a > b if wants_large else a < b) else "No."
        case "sort":
            descending = re.search(r"descending|largest to smallest", question)
            return ", ".join(str(n) for n in sorted(numbers(question), reverse=bool(descending)))
        case "reverse_words":
            return " ".join(words_of(exchange)[::-1])
        case "copy_words":
            return exchange.question.split(": ", 1)[1]
        case "count_words":
            return str(len(words_of(exchange)))
        case "count_up":
            first, last = numbers(question) if "from" in question else (1, *numbers(question))
            return ", ".join(str(n) for n in range(first, last + 1))
        case "decline":
            return DECLINE
        case _:
            raise AssertionError(f"{exchange.task} has no check")


@pytest.mark.parametrize("name", [name for name in TASKS if name != "about"])
@pytest.mark.parametrize("held_out", [True, False])
def test_answers_are_right(name: str, held_out: bool) -> None:
    rng = Random(3)
    for _ in range(SAMPLES):
        exchange = sample_exchange(TASKS[name], rng, held_out=held_out)
        assert exchange.answer == right_answer(exchange), exchange


def test_questions_do_not_depend_on_the_run() -> None:
    for task in TASKS.values():
        assert held_out_exchanges(task, 20, seed=5) == held_out_exchanges(task, 20, seed=5)
    assert [sample_conversation(Random(7)) for _ in range(3)] == [sample_conversation(Random(7)) for _ in range(3)]


def test_the_split_is_fixed_for_all_time() -> None:
    """The weights in the repository were trained on one side of it: it must not move under them."""
    sums = [f"{a}+{b}" for a in range(10, 16) for b in range(a, 100)]
    assert [key for key in sums if is_held_out("add_2digit", key)][:6] == FIRST_HELD_OUT_SUMS


FIRST_HELD_OUT_SUMS = ["10+22", "10+29", "10+45", "10+46", "10+59", "10+62"]


def test_training_never_sees_a_held_out_question() -> None:
    rng = Random(11)
    trained = {(e.task, e.key) for _ in range(20_000) for e in sample_conversation(rng).exchanges}
    measured = {(e.task, e.key) for task in TASKS.values() for e in held_out_exchanges(task, 200, seed=1)}
    assert len(trained) > 15_000
    assert not trained & measured


def test_a_sum_and_its_mirror_are_on_the_same_side() -> None:
    rng = Random(2)
    for exchange in (sample_exchange(TASKS["add_2digit"], rng, held_out=True) for _ in range(SAMPLES)):
        a, b = numbers(exchange.key)
        assert a <= b
        assert sorted(numbers(exchange.question)) == [a, b]


def test_enough_is_held_out_of_two_digit_addition() -> None:
    keys = [f"{a}+{b}" for a in range(10, 100) for b in range(a, 100)]
    share = sum(is_held_out("add_2digit", key) for key in keys) / len(keys)
    assert 0.10 <= share <= 0.15


def test_held_out_questions_are_all_different() -> None:
    questions = [e.question for e in held_out_exchanges(TASKS["add_2digit"], 200, seed=1)]
    assert len(questions) == len(set(questions)) == 200
