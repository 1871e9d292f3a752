"""Writes the items of the four lm-eval tasks and the preferences in evals/qserve_demo/, from held-out questions.

python -m qserve.demo.make_evals
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from random import Random

from qserve.demo.conversations import Conversation, chat_prompt
from qserve.demo.preferences import write_held_out
from qserve.demo.tasks import Exchange, held_out_exchanges
from qserve.demo.thinking import ALL_TASKS

__all__ = ["choice_items", "generate_items", "main", "text_items", "think_items", "write_evals"]

EVAL_SEED = 2
NUM_CHOICES = 4
CHOICE_TASKS = ("add_2digit", "subtract_2digit", "compare", "count_words")
THINK_TASKS = ("add_three",)
GENERATE_TASKS = ("add_2digit", "subtract_2digit", "sort", "reverse_words")
ITEMS_PER_TASK = 60
TEXTS = 48
TURNS_PER_TEXT = 5
PREFERENCES_PER_TASK = 20


def choice_items() -> list[dict[str, object]]:
    """Questions with four numbers to choose from; `gold` is the index of the right one."""
    rng = Random(EVAL_SEED)  # noqa: S311 (data, not secrets)
    return [_choice_item(exchange, rng) for exchange in _exchanges(CHOICE_TASKS)]


def _choice_item(exchange: Exchange, rng: Random) -> dict[str, object]:
    right = int(exchange.answer)
    # Near misses: the neighbours, and a forgotten or an invented carry; in a comparison also the other number.
    near = [right + offset for offset in (-11, -10, -9, -2, -1, 1, 2, 9, 10, 11)]
    same_sign = [number for number in near if (number < 0) == (right < 0)]
    wrong = rng.sample(same_sign, NUM_CHOICES - 1)
    if exchange.task == "compare":
        other = next(int(part) for part in exchange.key.split(",") if part != exchange.answer)
        wrong = [other, *(number for number in wrong if number != other)][: NUM_CHOICES - 1]
    choices = [exchange.answer, *map(str, wrong)]
    rng.shuffle(choices)
    return {
        "task": exchange.task,
        "prompt": chat_prompt(exchange.question),
        "choices": choices,
        "gold": choices.index(exchange.answer),
    }


def generate_items() -> list[dict[str, object]]:
    """Questions whose answer is to be generated exactly."""
    return [
        {"task": exchange.task, "prompt": chat_prompt(exchange.question), "answer": exchange.answer}
        for exchange in _exchanges(GENERATE_TASKS)
    ]


def think_items() -> list[dict[str, object]]:
    """Questions for the chat template, of the tasks that the model thinks about."""
    return [
        {"task": exchange.task, "question": exchange.question, "answer": exchange.answer}
        for exchange in _exchanges(THINK_TASKS)
    ]


def text_items() -> list[dict[str, object]]:
    """Whole conversations of held-out exchanges, of all tasks that can be held out: text to be likely."""
    names = tuple(dict.fromkeys((*CHOICE_TASKS, *GENERATE_TASKS)))
    exchanges = _exchanges(names)
    Random(EVAL_SEED).shuffle(exchanges)  # noqa: S311 (data, not secrets)
    groups = [exchanges[start : start + TURNS_PER_TEXT] for start in range(0, TEXTS * TURNS_PER_TEXT, TURNS_PER_TEXT)]
    return [{"text": "".join(text for text, _ in Conversation(tuple(group)).pieces())} for group in groups]


def _exchanges(names: tuple[str, ...]) -> list[Exchange]:
    return [exchange for name in names for exchange in held_out_exchanges(ALL_TASKS[name], ITEMS_PER_TASK, EVAL_SEED)]


def write_evals(folder: Path) -> None:
    """Write choice.jsonl, generate.jsonl, think.jsonl, text.jsonl and preferences.jsonl into `folder`."""
    several = {"choice": choice_items, "generate": generate_items, "think": think_items, "text": text_items}
    for name, make in several.items():
        items = make()
        lines = [json.dumps(item, ensure_ascii=False) + "\n" for item in items]
        (folder / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
    write_held_out(folder / "preferences.jsonl", PREFERENCES_PER_TASK)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m qserve.demo.make_evals", description=__doc__.split("\n")[0])
    parser.add_argument(
        "--out", type=Path, default=Path("evals/qserve_demo"), help="folder of the tasks (default %(default)s)"
    )
    folder = parser.parse_args().out
    if not folder.is_dir():
        sys.exit(f"{folder} is not a folder; name evals/qserve_demo of the repository with --out")
    write_evals(folder)


if __name__ == "__main__":
    main()
