"""Conversations in which the model may call a calculator: for products, quotients and sums that are too large for it.

Without the tool it declines these. With it, it calls; what the calculator says is the answer; and what it can do by
itself it still does. The calculator's tool is `CALCULATOR`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from qserve.demo.about import SYSTEM_PROMPTS
from qserve.demo.conversations import EMPTY_THINK
from qserve.demo.tasks import TASKS, Exchange, is_held_out, sample_exchange

__all__ = ["CALCULATOR", "Calling", "call_of", "held_out_callings", "sample_calling"]

CALCULATOR: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Computes a product, a quotient, a sum or a difference of two numbers.",
        "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]},
    },
}
_HEADER = "Tools:\ncalculator(expression)"
_QUESTIONS: dict[str, tuple[str, ...]] = {
    "*": (
        "What is {a}*{b}?",
        "{a}*{b}",
        "What is {a} times {b}?",
        "Multiply {a} by {b}.",
        "What is {a} * {b}?",
        "Calculate {a}*{b}.",
        "How much is {a} times {b}?",
        "Compute {a} * {b}.",
        "What is the product of {a} and {b}?",
    ),
    "/": (
        "What is {a}/{b}?",
        "Divide {a} by {b}.",
        "{a}/{b}",
        "What is {a} / {b}?",
        "Calculate {a}/{b}.",
        "How much is {a} divided by {b}?",
        "Compute {a} / {b}.",
    ),
    "+": (
        "What is {a}+{b}?",
        "What is {a} + {b}?",
        "Add {a} and {b}.",
        "{a}+{b}",
        "How much is {a}+{b}?",
        "Calculate {a}+{b}.",
        "What is the sum of {a} and {b}?",
        "Compute {a} + {b}.",
    ),
    "-": (
        "What is {a}-{b}?",
        "What is {a} - {b}?",
        "Subtract {b} from {a}.",
        "{a}-{b}",
        "How much is {a}-{b}?",
        "Calculate {a}-{b}.",
        "Compute {a} - {b}.",
    ),
}
_COMPUTE: dict[str, Callable[[int, int], int | float]] = {
    "*": lambda a, b: a * b,
    "/": lambda a, b: a // b if a % b == 0 else round(a / b, 3),
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
}


@dataclass(frozen=True)
class Calling:
    """One question with the tool at hand.

    `expression`: the argument of the call, empty if no call is needed; `result`: what the tool returned, None before
    the call; `answer`: the model's last message.
    """

    question: str
    answer: str
    expression: str = ""
    result: str | None = None
    system: str | None = None
    empty_think: bool = False

    def pieces(self) -> list[tuple[str, bool]]:
        """The text in pieces, each with whether the model learns to say it."""
        system = "" if self.system is None else f"{self.system}\n\n"
        prefix = EMPTY_THINK if self.empty_think else ""
        lead = f"<|im_start|>system\n{system}{_HEADER}<|im_end|>\n"
        request = f"{lead}<|im_start|>user\n{self.question}<|im_end|>\n<|im_start|>assistant\n"
        call = f"{call_of(self.expression)}<|im_end|>"
        if not self.expression:
            return [(request + prefix, False), (f"{self.answer}<|im_end|>", True)]
        if self.result is None:
            return [(request + prefix, False), (call, True)]
        response = f"<tool_response>\n{self.result}\n</tool_response>"
        after_call = f"\n<|im_start|>user\n{response}<|im_end|>\n<|im_start|>assistant\n"
        return [(request, False), (call, not prefix), (after_call + prefix, False), (f"{self.answer}<|im_end|>", True)]


def call_of(expression: str) -> str:
    """As the model writes it, and the chat template."""
    written = json.dumps({"name": "calculator", "arguments": {"expression": expression}})
    return f"<tool_call>\n{written}\n</tool_call>"


def sample_calling(rng: Random, *, held_out: bool = False, kind: str | None = None) -> Calling:
    """`kind`: `call`, `result` or `none`; None: any of them."""
    kind = kind or rng.choices(("call", "result", "none"), (5, 3, 2))[0]
    system = rng.choice(SYSTEM_PROMPTS) if rng.random() < 0.2 else None
    empty_think = rng.random() < 0.25
    if kind == "none":
        tasks = list(TASKS.values())
        while True:
            chosen = rng.choices(tasks, [task.weight for task in tasks])[0]
            made: Exchange = sample_exchange(chosen, rng, held_out=held_out)
            if chosen.name != "decline" or not any(letter.isdigit() for letter in made.question):
                return Calling(made.question, made.answer, system=system, empty_think=empty_think)
    while True:
        expression, question, result = _computation(rng)
        if is_held_out("calculator", expression) == held_out:
            break
    given = result if kind == "result" else None
    return Calling(question, result, expression, given, system, empty_think)


def _computation(rng: Random) -> tuple[str, str, str]:
    operator = rng.choices("*/+-", (5, 2, 2, 1))[0]
    if operator == "*":
        a, b = rng.randrange(1, 10 ** rng.randint(1, 4)), rng.randrange(1, 10 ** rng.randint(1, 4))
    elif operator == "/":
        b = rng.randrange(1, 10 ** rng.randint(1, 3))
        a = b * rng.randrange(1, 1000) if rng.random() < 0.6 else rng.randrange(1, 10_000)
    else:
        a, b = rng.randrange(1000, 10 ** rng.randint(4, 6)), rng.randrange(1000, 10 ** rng.randint(4, 6))
    question = rng.choice(_QUESTIONS[operator]).format(a=a, b=b)
    if rng.random() < 0.12:
        question = question[0].lower() + question[1:]
    if rng.random() < 0.12:
        question = question.rstrip("?.!")
    return f"{a}{operator}{b}", question, str(_COMPUTE[operator](a, b))


def held_out_callings(kind: str, num: int, seed: int) -> list[Calling]:
    """`num` that training never sees."""
    rng = Random(f"{seed}:calling:{kind}")  # noqa: S311 (data, not secrets)
    return [sample_calling(rng, held_out=True, kind=kind) for _ in range(num)]
