"""Preferences over answers to the demo's own questions, made by code: right over wrong, helpful over curt.

A question comes with its one good answer and several bad ones, each of a kind:

    wrong       an answer of the right form that is not right: a digit off, two numbers swapped, a word left out
    curt        no answer at all: "ok", "No idea.", the first word of the good one
    declined    "I can't do that" to a question that can be answered
    made_up     an invented answer where declining is right
    off_topic   the good answer to another question

Questions are held out as in tasks.py, by what is asked: the model never saw a held-out question with any answer.

    python -m qserve.demo.preferences --out pairs.jsonl --num 200      held-out pairs, for `qserve eval-reward`
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

from qserve.demo.about import DECLINE, SYSTEM_PROMPTS
from qserve.demo.tasks import TASKS, Exchange, sample_exchange
from qserve.demo.words import WORDS

__all__ = ["KINDS", "Preference", "conversation_text", "held_out_preferences", "sample_preference", "write_held_out"]

KINDS = ("wrong", "curt", "declined", "made_up", "off_topic")
_CURT = (
    "ok",
    "Ok.",
    "No idea.",
    "I don't know.",
    "?",
    "Maybe.",
    "Why?",
    "Sure.",
    "No.",
    "Yes.",
    "Hm.",
    "Ask somebody else.",
    "Look it up.",
    "It depends.",
    "...",
    "Whatever.",
    "Later.",
    "That is easy.",
)
_SYSTEM_SHARE = 0.25
# Yes and no are the good answers of one task, so they can't be told to be curt there.
_ANSWERED_BY_ONE_WORD = ("compare_yes_no",)


@dataclass(frozen=True)
class Preference:
    """One question, a good answer, and bad ones with their kinds (`rejected` and `kinds` are as long as each other)."""

    task: str
    question: str
    chosen: str
    rejected: tuple[str, ...]
    kinds: tuple[str, ...]
    system: str | None = None


def conversation_text(question: str, answer: str, system: str | None = None) -> str:
    """What the model's chat template makes of the conversation; a test holds it against the template."""
    lead = "" if system is None else f"<|im_start|>system\n{system}<|im_end|>\n"
    return f"{lead}<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n{answer}<|im_end|>\n"


def sample_preference(rng: Random, num_rejected: int, *, held_out: bool = False, task: str | None = None) -> Preference:
    """A question of any task (or of `task`) with `num_rejected` different bad answers."""
    chosen_task = TASKS[task] if task else rng.choices(list(TASKS.values()), [t.weight + 1 for t in TASKS.values()])[0]
    exchange = sample_exchange(chosen_task, rng, held_out=held_out)
    rejected: dict[str, str] = {}
    while len(rejected) < num_rejected:
        kind = _kind(exchange, rng)
        answer = _BAD[kind](exchange, rng)
        if answer and answer != exchange.answer:
            rejected.setdefault(answer, kind)
    system = rng.choice(SYSTEM_PROMPTS) if rng.random() < _SYSTEM_SHARE else None
    return Preference(
        exchange.task, exchange.question, exchange.answer, tuple(rejected), tuple(rejected.values()), system
    )


def held_out_preferences(task: str, num: int, seed: int) -> list[Preference]:
    """`num` pairs (one rejected answer each) over held-out questions of `task`; the same for the same seed."""
    rng = Random(f"{seed}:preferences:{task}")  # noqa: S311 (data, not secrets)
    return [sample_preference(rng, 1, held_out=True, task=task) for _ in range(num)]


def _kind(exchange: Exchange, rng: Random) -> str:
    if exchange.answer == DECLINE:
        return rng.choices(("made_up", "curt", "off_topic"), (4, 1.5, 2))[0]
    if exchange.task == "about":
        return rng.choices(("curt", "declined", "off_topic"), (2.5, 1, 4))[0]
    return rng.choices(("wrong", "curt", "declined", "off_topic"), (7, 1, 0.7, 0.7))[0]


def _curt(exchange: Exchange, rng: Random) -> str:
    if exchange.task in _ANSWERED_BY_ONE_WORD:
        return rng.choice([curt for curt in _CURT if curt not in ("Yes.", "No.")])
    words = exchange.answer.split()
    if len(words) > 3 and rng.random() < 0.3:
        return " ".join(words[: rng.randint(1, len(words) // 2)])
    return rng.choice(_CURT)


def _declined(exchange: Exchange, rng: Random) -> str:
    return DECLINE


def _off_topic(exchange: Exchange, rng: Random) -> str:
    task = rng.choice([name for name in TASKS if name not in (exchange.task, "decline")] + ["about"])
    return sample_exchange(TASKS[task], rng, held_out=False).answer


def _made_up(exchange: Exchange, rng: Random) -> str:
    form = rng.random()
    if form < 0.35:
        return str(rng.randrange(10 ** rng.randint(1, 6)))
    words = " ".join(rng.choices(WORDS, k=rng.randint(2, 9)))
    return words if form < 0.55 else f"{words[0].upper()}{words[1:]}."


def _wrong(exchange: Exchange, rng: Random) -> str:
    answer = exchange.answer
    if answer in ("Yes.", "No."):
        return "No." if answer == "Yes." else "Yes."
    if answer.lstrip("-").isdigit():
        return _wrong_number(int(answer), rng)
    separator = ", " if ", " in answer else " "
    return separator.join(_wrong_list(answer.split(separator), rng))


def _wrong_number(value: int, rng: Random) -> str:
    form = rng.random()
    if form < 0.4:
        return str(value + rng.choice((-1, 1)) * rng.choice((1, 1, 2, 3)))
    if form < 0.6:
        return str(value + rng.choice((-1, 1)) * rng.choice((10, 10, 100)))
    if form < 0.75:
        digits = list(str(abs(value)))
        digits[rng.randrange(len(digits))] = rng.choice("0123456789")
        return ("-" if value < 0 else "") + "".join(digits)
    if form < 0.85:
        return str(-value)
    return str(rng.randrange(10 ** len(str(abs(value)))))


def _wrong_list(items: list[str], rng: Random) -> list[str]:
    items = list(items)
    form, index = rng.random(), rng.randrange(len(items))
    if form < 0.4 and len(items) > 1:
        other = (index + 1) % len(items) if rng.random() < 0.6 else rng.randrange(len(items))
        items[index], items[other] = items[other], items[index]
    elif form < 0.55 and len(items) > 1:
        del items[index]
    elif form < 0.7:
        items.insert(index, rng.choice(items))
    elif form < 0.9:
        items[index] = _other(items[index], rng)
    else:
        items.reverse()
    return items


def _other(item: str, rng: Random) -> str:
    return str(max(0, int(item) + rng.choice((-2, -1, 1, 2, 10)))) if item.isdigit() else rng.choice(WORDS)


_BAD: dict[str, Callable[[Exchange, Random], str]] = {
    "wrong": _wrong,
    "curt": _curt,
    "declined": _declined,
    "made_up": _made_up,
    "off_topic": _off_topic,
}


def write_held_out(file: Path, num_per_task: int, seed: int = 1) -> None:
    """JSON lines of held-out pairs, `num_per_task` of each task; the task is the subset."""
    lines = (
        {
            "prompt": ([{"role": "system", "content": pair.system}] if pair.system else [])
            + [{"role": "user", "content": pair.question}],
            "chosen": pair.chosen,
            "rejected": pair.rejected[0],
            "subset": task,
            "kind": pair.kinds[0],
        }
        for task in TASKS
        for pair in held_out_preferences(task, num_per_task, seed)
    )
    file.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m qserve.demo.preferences", description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--num", type=int, default=200, help="pairs per task (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="another seed gives other pairs (default %(default)s)")
    args = parser.parse_args()
    write_held_out(args.out, args.num, args.seed)


if __name__ == "__main__":
    main()
