"""Questions with answers that code generates, and which of them training never sees.

Each task makes a `key` (what is asked: the operands, the words), a question in one of several phrasings, and the
answer. A key belongs to the held-out set by its hash, whatever the phrasing and whatever the seed: one key in eight. So
the two sets are disjoint by construction. Sums hash the unordered pair: 12+30 and 30+12 are on the same side. One
exception: the first phrasings of each question about qserve are always trained, since they are what newcomers type.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from qserve.demo import declined, phrasings
from qserve.demo.about import ABOUT, DECLINE
from qserve.demo.words import WORDS

__all__ = ["HELD_OUT_ONE_IN", "TASKS", "Exchange", "Task", "held_out_exchanges", "is_held_out", "sample_exchange"]

HELD_OUT_ONE_IN = 8

_PLAIN_QUESTIONS = frozenset(question.lower().rstrip("?.!") for _, questions in ABOUT for question in questions[:3])


@dataclass(frozen=True)
class Exchange:
    """One question and its one right answer. `key` is what is asked, without its phrasing."""

    task: str
    key: str
    question: str
    answer: str


@dataclass(frozen=True)
class Task:
    """A kind of question. `weight` is its share of the training conversations."""

    name: str
    weight: float
    make: Callable[[Random], tuple[str, str, str]]


def is_held_out(task: str, key: str) -> bool:
    """Whether training must not see this key. A fixed hash: the same on every machine and for every seed."""
    if task == "about" and key in _PLAIN_QUESTIONS:
        return False
    digest = hashlib.blake2b(f"{task}:{key}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % HELD_OUT_ONE_IN == 0


def sample_exchange(task: Task, rng: Random, *, held_out: bool) -> Exchange:
    """One exchange of `task` from the held-out side or from the training side."""
    while True:
        key, question, answer = task.make(rng)
        if is_held_out(task.name, key) == held_out:
            return Exchange(task.name, key, question, answer)


def held_out_exchanges(task: Task, num: int, seed: int) -> list[Exchange]:
    """Up to `num` held-out exchanges with different questions; fewer where the task has no more."""
    rng = Random(f"{seed}:{task.name}")  # noqa: S311 (data, not secrets)
    found: dict[str, Exchange] = {}
    for _ in range(50 * num):
        exchange = sample_exchange(task, rng, held_out=True)
        found.setdefault(exchange.question, exchange)
        if len(found) == num:
            break
    return list(found.values())


def _written(question: str, rng: Random) -> str:
    """With and without capitals and full stops, as people write."""
    if rng.random() < 0.12:
        question = question[0].lower() + question[1:]
    if rng.random() < 0.12:
        question = question.rstrip("?.!")
    return question


def _phrase(forms: tuple[str, ...], rng: Random, **parts: object) -> str:
    # The first form of each list is the plainest, and what a newcomer types: twice as often.
    form = forms[max(0, rng.randrange(-1, len(forms)))]
    return _written(form.format(**parts), rng)


def _sum(a: int, b: int, rng: Random) -> tuple[str, str, str]:
    return f"{min(a, b)}+{max(a, b)}", _phrase(phrasings.SUM, rng, a=a, b=b), str(a + b)


def _add_2digit(rng: Random) -> tuple[str, str, str]:
    return _sum(rng.randrange(10, 100), rng.randrange(10, 100), rng)


def _add_1digit(rng: Random) -> tuple[str, str, str]:
    a, b = rng.sample((rng.randrange(10), rng.randrange(100)), 2)
    return _sum(a, b, rng)


def _add_3digit(rng: Random) -> tuple[str, str, str]:
    a, b = rng.sample((rng.randrange(100, 1000), rng.choice((rng.randrange(100, 1000), rng.randrange(1000)))), 2)
    return _sum(a, b, rng)


def _subtract_2digit(rng: Random) -> tuple[str, str, str]:
    a, b = rng.randrange(100), rng.randrange(100)
    if a < b and rng.random() < 0.6:  # most people subtract the smaller one
        a, b = b, a
    return f"{a}-{b}", _phrase(phrasings.DIFFERENCE, rng, a=a, b=b), str(a - b)


def _two_numbers(rng: Random) -> tuple[int, int]:
    limit = rng.choice((20, 100, 100, 1000))
    a = rng.randrange(limit)
    b = a + rng.choice((-1, 1)) * rng.randrange(1, 10) if rng.random() < 0.3 else rng.randrange(limit)
    return (a, b) if b >= 0 and a != b else (limit - 1, limit // 2 + rng.randrange(limit // 4))


def _compare(rng: Random) -> tuple[str, str, str]:
    a, b = _two_numbers(rng)
    larger = rng.random() < 0.6
    question = _phrase(phrasings.LARGER if larger else phrasings.SMALLER, rng, a=a, b=b)
    return f"{min(a, b)},{max(a, b)}", question, str(max(a, b) if larger else min(a, b))


def _compare_yes_no(rng: Random) -> tuple[str, str, str]:
    a, b = _two_numbers(rng)
    larger = rng.random() < 0.6
    question = _phrase(phrasings.IS_LARGER if larger else phrasings.IS_SMALLER, rng, a=a, b=b)
    return f"{min(a, b)},{max(a, b)}", question, "Yes." if (a > b) == larger else "No."


def _sort(rng: Random) -> tuple[str, str, str]:
    numbers = [rng.randrange(100) for _ in range(rng.randrange(3, 7))]
    descending = rng.random() < 0.25
    separator = rng.choice((", ", ", ", ", ", " "))
    question = _phrase(
        phrasings.DESCENDING if descending else phrasings.ASCENDING, rng, x=separator.join(map(str, numbers))
    )
    answer = ", ".join(map(str, sorted(numbers, reverse=descending)))
    return ",".join(map(str, sorted(numbers))), question, answer


def _pick_words(rng: Random, low: int, high: int) -> list[str]:
    return [rng.choice(WORDS) for _ in range(rng.randint(low, high))]


def _made_up(rng: Random) -> str:
    return "".join(rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(rng.randint(2, 7)))


def _reverse_words(rng: Random) -> tuple[str, str, str]:
    words = _pick_words(rng, 2, 6)
    return " ".join(words), _phrase(phrasings.REVERSE, rng, x=" ".join(words)), " ".join(reversed(words))


def _copy_words(rng: Random) -> tuple[str, str, str]:
    words = _pick_words(rng, 1, 8)
    if rng.random() < 0.2:
        words[rng.randrange(len(words))] = rng.choice((_made_up(rng), str(rng.randrange(1000))))
    # The question is not `_written`: a changed first letter or a stripped full stop would change the words themselves.
    text = " ".join(words)
    return text, rng.choice(phrasings.COPY).format(x=text), text


def _count_words(rng: Random) -> tuple[str, str, str]:
    words = _pick_words(rng, 1, 10)
    if rng.random() < 0.4:
        text, forms = ", ".join(words), phrasings.COUNT_ITEMS
    else:
        text, forms = " ".join(words), phrasings.COUNT_WORDS
    return " ".join(words), _phrase(forms, rng, x=text), str(len(words))


def _count_up(rng: Random) -> tuple[str, str, str]:
    first = rng.choice((0, 1, 1, 1, rng.randrange(90)))
    last = first + rng.randint(2, min(30, 99 - first))
    question = _phrase(phrasings.COUNT_UP, rng, a=first, b=last)
    if first == 1 and rng.random() < 0.5:
        question = _written(f"Count to {last}.", rng)
    return f"{first}..{last}", question, ", ".join(map(str, range(first, last + 1)))


def _about(rng: Random) -> tuple[str, str, str]:
    answer, questions = rng.choice(ABOUT)
    question = rng.choice(questions)
    # The key is the question as listed, so that a change of case does not move it over to the other side.
    return question.lower().rstrip("?.!"), _written(question, rng), answer


def _decline(rng: Random) -> tuple[str, str, str]:
    kind = rng.random()
    if kind < 0.6:
        question = rng.choice(declined.FORMS).format(rng.choice(declined.TOPICS))
    elif kind < 0.8:
        question = rng.choice(declined.QUESTIONS)
    elif kind < 0.87:
        question = rng.choice(declined.PRODUCTS).format(rng.randrange(1000), rng.randrange(1, 1000))
    elif kind < 0.94:
        question = rng.choice(declined.LARGE_SUMS).format(rng.randrange(1000, 100_000), rng.randrange(1000, 100_000))
    else:
        question = " ".join(_made_up(rng) for _ in range(rng.randint(1, 5)))
    return question.lower().rstrip("?.!"), _written(question, rng), DECLINE


TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task("add_2digit", 5.0, _add_2digit),
        Task("add_1digit", 1.0, _add_1digit),
        Task("add_3digit", 2.5, _add_3digit),
        Task("subtract_2digit", 4.0, _subtract_2digit),
        Task("compare", 1.5, _compare),
        Task("compare_yes_no", 1.5, _compare_yes_no),
        Task("sort", 2.5, _sort),
        Task("reverse_words", 2.0, _reverse_words),
        Task("copy_words", 1.2, _copy_words),
        Task("count_words", 1.5, _count_words),
        Task("count_up", 0.25, _count_up),
        Task("about", 1.0, _about),
        Task("decline", 0.8, _decline),
    )
}
