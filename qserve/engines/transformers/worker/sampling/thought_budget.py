"""`thinking_token_budget`: a thought that has had its tokens is ended by the engine, and the answer follows.

As in vLLM (0.32, `v1/sample/thinking_budget_state.py`): tokens after `<think>` count, those of the prompt included, and
at the budget `</think>` is forced token by token. A thought that ends by itself is left alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Thought", "ThoughtBudget"]


@dataclass(frozen=True)
class ThoughtBudget:
    """`num_tokens` of a thought between the tokens `open_ids` and `close_ids`, neither of them empty."""

    num_tokens: int
    open_ids: tuple[int, ...]
    close_ids: tuple[int, ...]


class Thought:
    """Follows one sequence. `forced` is the next token where the budget is spent; else None."""

    def __init__(self, budget: ThoughtBudget, prompt_ids: Sequence[int]) -> None:
        self._budget = budget
        self._recent: list[int] = []
        self._num_tokens: int | None = None  # None: in no thought
        self._num_forced = 0
        first = budget.open_ids[0]
        begins = prompt_ids.index(first) if first in prompt_ids else len(prompt_ids)
        for token_id in prompt_ids[begins:]:
            self.see(token_id)

    @property
    def forced(self) -> int | None:
        """What must come next."""
        if self._num_tokens is None or self._num_tokens < self._budget.num_tokens:
            return None
        return self._budget.close_ids[self._num_forced]

    def see(self, token_id: int) -> None:
        """Take in the next token, of the prompt or drawn."""
        open_ids, close_ids = self._budget.open_ids, self._budget.close_ids
        self._num_forced = self._num_forced + 1 if token_id == self.forced else 0
        self._recent = [*self._recent, token_id][-max(len(open_ids), len(close_ids)) :]
        if tuple(self._recent[-len(close_ids) :]) == close_ids:
            self._num_tokens, self._num_forced = None, 0
        elif tuple(self._recent[-len(open_ids) :]) == open_ids:
            self._num_tokens = 0
        elif self._num_tokens is not None and not self._num_forced:
            self._num_tokens += 1
