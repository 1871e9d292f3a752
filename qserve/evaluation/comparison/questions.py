"""The work of each candidate in a comparison: a fixed load, and items whose answers are compared."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from qserve.evaluation import harness, preferences, server
from qserve.evaluation.answers import cache as answers
from qserve.evaluation.answers.thinking_mode import thinking_mode
from qserve.evaluation.comparison.load import LoadFigures, chat_load, reward_load
from qserve.evaluation.harness import Progress
from qserve.evaluation.request import EvalRequest
from qserve.evaluation.results import EvalResult
from qserve.evaluation.server import ServedModel
from qserve.evaluation.tasks import Tasks
from qserve.reward.evaluation.records import Record

__all__ = ["ChatQuestions", "Questions", "RewardQuestions"]

_NUM_STREAMS = 8
_NUM_REQUESTS = 32
_NUM_TOKENS = 32
_PROMPTS = (
    "What is 12+30?",
    "Sort these numbers: 9 4 7 1",
    "Which is larger, 15 or 9?",
    "Reverse the words: red green blue",
)
_CONVERSATIONS_A_REQUEST = 8


class Questions(Protocol):
    """What every candidate is asked, by its role."""

    @property
    def role(self) -> str:
        """Of the worker that is asked: chat or reward."""
        ...

    def served(self, url: str, api_key: str, folder: Path) -> ServedModel:
        """The model at `url` that is asked."""
        ...

    def load(self, served: ServedModel) -> LoadFigures:
        """The fixed load."""
        ...

    def result(self, served: ServedModel, cache: Path, progress: Progress) -> EvalResult:
        """The answers; those that an interrupted run left in `cache` are not asked again."""
        ...


@dataclass(frozen=True)
class ChatQuestions:
    """lm-eval's tasks, and streams of chat."""

    request: EvalRequest
    tasks: Tasks
    role: str = "chat"

    def served(self, url: str, api_key: str, folder: Path) -> ServedModel:
        """The chat model, with its tokenizer."""
        return server.inspect_server(url, api_key, None, None, folder / "tokenizer")

    def load(self, served: ServedModel) -> LoadFigures:
        """The same prompts for everyone, answered at the same length."""
        prompts = [_PROMPTS[index % len(_PROMPTS)] for index in range(_NUM_REQUESTS)]
        return chat_load(served, prompts, num_streams=_NUM_STREAMS, num_tokens=_NUM_TOKENS)

    def result(self, served: ServedModel, cache: Path, progress: Progress) -> EvalResult:
        """lm-eval's."""
        kept = answers.kept_answers(cache, served, self.request)
        began = time.monotonic()
        thinking, notes = thinking_mode(served, self.request, self.tasks)
        outcome = harness.evaluate(served, self.request, cache, progress, self.tasks, thinking)
        return EvalResult.of(served, self.request, outcome, time.monotonic() - began, kept, notes)


@dataclass(frozen=True)
class RewardQuestions:
    """Preferences, and requests for the rewards of their conversations."""

    name: str
    records: tuple[Record, ...]
    role: str = "reward"

    def served(self, url: str, api_key: str, folder: Path) -> ServedModel:
        """The reward model."""
        return server.inspect_reward_server(url, api_key)

    def load(self, served: ServedModel) -> LoadFigures:
        """Requests of several conversations each, over and over the same."""
        several = preferences.conversations_of(self.records)
        batches = [
            [several[(index + offset) % len(several)] for offset in range(_CONVERSATIONS_A_REQUEST)]
            for index in range(0, _NUM_REQUESTS * _CONVERSATIONS_A_REQUEST, _CONVERSATIONS_A_REQUEST)
        ]
        return reward_load(served, batches, num_streams=_NUM_STREAMS)

    def result(self, served: ServedModel, cache: Path, progress: Progress) -> EvalResult:
        """Chosen over rejected is right."""
        began = time.monotonic()
        outcome = preferences.evaluate_preferences(served, self.name, self.records, progress)
        return EvalResult.of(served, EvalRequest((self.name,)), outcome, time.monotonic() - began)
