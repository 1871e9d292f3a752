"""Questions become ChatML conversations, as the chat template in chat/chat_template.jinja would write them.

Written by hand because training makes millions of them; a test holds it against the template.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from qserve.demo.about import SYSTEM_PROMPTS
from qserve.demo.tasks import Exchange, sample_exchange
from qserve.demo.thinking import ALL_TASKS, thought_of

__all__ = ["EMPTY_THINK", "Conversation", "chat_prompt", "sample_conversation"]

EMPTY_THINK = "<think>\n\n</think>\n\n"

_SYSTEM_SHARE = 0.3
_NUM_TURNS = (1, 1, 1, 1, 1, 1, 1, 2, 2, 3)
_NO_THINKING_SHARE = 0.1


@dataclass(frozen=True)
class Conversation:
    """Exchanges under an optional system prompt.

    `empty_think`: the empty <think> block that `enable_thinking: false` puts before the last answer.
    """

    exchanges: tuple[Exchange, ...]
    system: str | None = None
    empty_think: bool = False

    def pieces(self) -> list[tuple[str, bool]]:
        """The text in pieces, each with whether the model learns to say it (answers and their <|im_end|>)."""
        pieces: list[tuple[str, bool]] = []
        lead = "" if self.system is None else f"<|im_start|>system\n{self.system}<|im_end|>\n"
        for turn, exchange in enumerate(self.exchanges, start=1):
            is_last = turn == len(self.exchanges)
            prefix = EMPTY_THINK if self.empty_think and is_last else ""
            pieces.append(
                (f"{lead}<|im_start|>user\n{exchange.question}<|im_end|>\n<|im_start|>assistant\n{prefix}", False)
            )
            thought = thought_of(exchange.task, exchange.question)
            if thought and is_last and not prefix:
                pieces.append((f"<think>\n{thought}\n</think>\n\n", True))
            # The template drops the thoughts of earlier turns: an answer without its own is read there, not learned.
            pieces.append((f"{exchange.answer}<|im_end|>", is_last or not thought))
            lead = "\n"
        return pieces


def chat_prompt(question: str) -> str:
    """The prompt that the chat template makes of one user message."""
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


def sample_conversation(rng: Random, weights: Mapping[str, float] | None = None) -> Conversation:
    """A conversation for training: nothing in it is held out. `weights` by task name go before the tasks' own."""
    tasks = list(ALL_TASKS.values())
    shares = [(weights or {}).get(task.name, task.weight) for task in tasks]
    chosen = rng.choices(tasks, shares, k=rng.choice(_NUM_TURNS))
    return Conversation(
        exchanges=tuple(sample_exchange(task, rng, held_out=False) for task in chosen),
        system=rng.choice(SYSTEM_PROMPTS) if rng.random() < _SYSTEM_SHARE else None,
        empty_think=rng.random() < _NO_THINKING_SHARE,
    )
