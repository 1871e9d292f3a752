"""What the demo model thinks before it answers: sums of three numbers, one addition a line.

Its other tasks it answers at once. `enable_thinking: false` makes the chat template close the thought before it begins;
then the model has to add three numbers at once, and is right less often. So thinking can be tried and measured on a
model of two million parameters: it matters whether the thought is finished, cut off, or left out.
"""

from __future__ import annotations

import re
from random import Random

from qserve.demo.tasks import TASKS, Task

__all__ = ["ALL_TASKS", "THINKING_TASKS", "thought_of"]

_FORMS = (
    "What is {a}+{b}+{c}?",
    "What is {a} + {b} + {c}?",
    "Add {a}, {b} and {c}.",
    "Calculate {a}+{b}+{c}.",
    "What is the sum of {a}, {b} and {c}?",
    "How much is {a}+{b}+{c}?",
    "{a}+{b}+{c}",
    "{a} + {b} + {c} = ?",
)


def _add_three(rng: Random) -> tuple[str, str, str]:
    numbers = [rng.randrange(10, 100) for _ in range(3)]
    key = "+".join(map(str, sorted(numbers)))
    question = rng.choice(_FORMS).format(a=numbers[0], b=numbers[1], c=numbers[2])
    return key, question, str(sum(numbers))


# Weight 0: training takes them with --weight only, so that nothing that was drawn before they were there changes.
THINKING_TASKS: dict[str, Task] = {"add_three": Task("add_three", 0.0, _add_three)}

ALL_TASKS: dict[str, Task] = {**TASKS, **THINKING_TASKS}


def thought_of(task: str, question: str) -> str:
    """The text between <think> and </think>, without them; empty for tasks that are answered at once."""
    if task not in THINKING_TASKS:
        return ""
    first, second, third = (int(number) for number in re.findall(r"\d+", question))
    return f"{first}+{second}={first + second}\n{first + second}+{third}={first + second + third}"
