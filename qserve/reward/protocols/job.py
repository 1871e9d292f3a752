"""`ScoreJob`, to which every protocol is translated: texts to score, and the function that builds the answer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from qserve.reward.answers import check_answered
from qserve.reward.checkpoints import Vectors
from qserve.reward.failures import TextRefused
from qserve.reward.items import Score
from qserve.reward.protocols.chatml import turns_of, without_end
from qserve.reward.settings import Truncation
from qserve.rows.tools import called_text
from qserve.wire.errors import ApiError
from qserve.wire.reward.fields import RewardFields
from qserve.wire.reward.messages import ScoredMessage

__all__ = [
    "JOBS",
    "Content",
    "ModelInfo",
    "ScoreJob",
    "Scored",
    "Text",
    "answer_of",
    "answered",
    "asked",
    "conversation",
    "job_of",
    "sigmoid",
    "softmax",
    "texts_of_input",
    "usage",
]

Content = str | tuple[int, ...] | tuple[Mapping[str, Any], ...] | Mapping[str, Any]
"""A text that went through a template already, token ids, or messages; or an object of `messages` and what the template
is given with them, or of a whole `text` that EOS ends (`RewardTemplate.encode`)."""


@dataclass(frozen=True)
class ModelInfo:
    """What a protocol may know of the model before anything is scored. `meta` is the scorer's; `takes_references`:
    rules or judges read answers beside the model, or in its place; `vectors` is of an embedding model."""

    model: str
    meta: Mapping[str, Any]
    takes_references: bool = False
    vectors: Vectors | None = None

    @property
    def step_token(self) -> str | None:
        """The text that ends a step, of a process reward model."""
        token: str | None = self.meta.get("step_token")
        return token

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the attributes, of a model with several."""
        return tuple(self.meta.get("weights") or ())

    def values(self, score: Score, raw: bool) -> list[float]:
        """What a classifier of another server answers of a text: the value of its one label, or one per attribute.

        Unless `raw` one label goes through the sigmoid and several through the softmax, as vLLM and
        text-embeddings-inference have it.
        """
        if score.attributes is None:
            return [self.activation(raw)(score.reward)]
        return list(score.attributes) if raw else softmax(score.attributes)

    def activation(self, raw: bool) -> Callable[[float], float]:
        """What other servers do to a reward unless it is wanted raw: the sigmoid. A process reward model's is a
        probability already."""
        return float if raw or self.step_token is not None else sigmoid


@dataclass(frozen=True)
class Text:
    """One text to score.

    Attributes:
        content: what it is.
        where: the field it came from, for errors.
        every_token: read the head at each token.
        reference: what rules and judges compare the answer with.
        prompt: of a templated text, the beginning that is no answer, where the client says it.
        truncated: the content was cut off already.
    """

    content: Content
    where: str
    every_token: bool = False
    reference: str | None = None
    prompt: str | None = None
    truncated: bool = False


@dataclass(frozen=True)
class Scored:
    """What became of a job: its scores in the order of its texts.

    Attributes:
        scores: one per text.
        model: the name that the answer tells.
        meta: how the scores came about, with the number of truncated texts.
        latency_ms: from the body's last byte to the last score.
        created_unix_s: for protocols that have it.
    """

    scores: Sequence[Score]
    model: str
    meta: Mapping[str, Any]
    latency_ms: float
    created_unix_s: int

    @property
    def rewards(self) -> list[float]:
        return [score.reward for score in self.scores]

    @property
    def num_tokens(self) -> int:
        return sum(score.num_tokens for score in self.scores)


@dataclass(frozen=True)
class ScoreJob:
    """Texts, what may be cut off of them, and what is said about their scores.

    Attributes:
        texts: at least one.
        answer: the body of the answer; bytes are JSON already.
        truncate: goes before the model's own setting.
        max_length: goes before the model's own, where it is smaller.
        max_prompt_tokens, max_answer_tokens: of each message before the answer, and of the answer, no more is read.
    """

    texts: tuple[Text, ...]
    answer: Callable[[Scored], Any]
    truncate: Truncation | None = None
    max_length: int | None = None
    max_prompt_tokens: int | None = None
    max_answer_tokens: int | None = None


Request = TypeVar("Request", bound=RewardFields)
JOBS: dict[type[RewardFields], Callable[[Any, ModelInfo], ScoreJob]] = {}
"""By the schema of a request the function that makes its job; `table.py` has them all."""


def job_of(
    schema: type[Request],
) -> Callable[[Callable[[Request, ModelInfo], ScoreJob]], Callable[[Request, ModelInfo], ScoreJob]]:
    """Marks the function that makes the job of a request of this schema."""

    def mark(job: Callable[[Request, ModelInfo], ScoreJob]) -> Callable[[Request, ModelInfo], ScoreJob]:
        JOBS[schema] = job
        return job

    return mark


def conversation(messages: Sequence[ScoredMessage], where: str) -> tuple[Mapping[str, Any], ...]:
    """Messages for the template. Raises TextRefused unless the last one is an answer that holds something."""
    turns = tuple(message.for_template() for message in messages)
    check_answered(turns, where)
    return turns


def asked(prompt: str | Sequence[ScoredMessage]) -> list[Mapping[str, Any]]:
    """The messages before an answer; a prompt that is a string is the user's turn."""
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}]
    return [message.for_template() for message in prompt]


def answered(prompt: str | Sequence[ScoredMessage], answer: str, where: str) -> tuple[Mapping[str, Any], ...]:
    """`answer` as the assistant's turn after `prompt`."""
    before = asked(prompt)
    if before[-1]["role"] == "assistant":
        raise ApiError(
            400,
            "'prompt' ends with the assistant's message already; it must end with the user's (or a tool's)",
            "invalid_value",
            "prompt",
        )
    turns = (*before, {"role": "assistant", "content": answer})
    check_answered(turns, where)
    return turns


def texts_of_input(value: Any, where: str, *, every_token: bool = False) -> tuple[Text, ...]:
    """A string, token ids, or a list of either."""
    several = isinstance(value, list) and not isinstance(value[0], int)
    items = value if several else [value]
    return tuple(
        Text(_plain(item, name), name, every_token=every_token)
        for item, name in ((item, f"{where}.{index}" if several else where) for index, item in enumerate(items))
    )


def _plain(value: Any, where: str) -> Content:
    if isinstance(value, str):
        if not value:
            raise ApiError(400, f"'{where}' is an empty text; there is nothing to score", "empty_input", where)
        return value
    return tuple(value)


def answer_of(text: Text) -> tuple[str, str]:
    """(prompt, answer) as text, for rules and judges. Raises TextRefused for token ids, which they can't read.

    A text that went through a chat template is taken apart again; the tokens that end it are no part of the answer.
    """
    content = text.content
    if isinstance(content, Mapping):
        content = str(content["text"]) if "text" in content else tuple(content["messages"])
    if isinstance(content, str):
        turns = turns_of(content)
        if not turns:
            begins = text.prompt is not None and content.startswith(text.prompt)
            answer = content[len(text.prompt or "") :] if begins else content
            return text.prompt or "", without_end(answer)
        content = tuple(turns)
    if content and isinstance(content[0], int):
        message = f"'{text.where}' has token ids; rules and judges read text: send messages, texts or responses"
        raise TextRefused(message, "invalid_value", text.where)
    *before, last = [message for message in content if not isinstance(message, int)]
    said = [called_text(message) for message in before]
    if len(said) > 1:
        said = [f"{message['role']}: {words}" for message, words in zip(before, said, strict=True)]
    return "\n\n".join(said), called_text(last)


def sigmoid(value: float) -> float:
    """Without overflow for any finite value."""
    return 1 / (1 + math.exp(-value)) if value >= 0 else math.exp(value) / (1 + math.exp(value))


def softmax(values: Sequence[float]) -> list[float]:
    """Without overflow for finite values."""
    powers = [math.exp(value - max(values)) for value in values]
    return [power / sum(powers) for power in powers]


def usage(scored: Scored) -> dict[str, int]:
    """OpenAI's fields; nothing is generated."""
    return {"prompt_tokens": scored.num_tokens, "completion_tokens": 0, "total_tokens": scored.num_tokens}
