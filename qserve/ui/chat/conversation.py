"""A conversation as the browser keeps it: questions, and for each the answers of one side or of two.

It is immutable; the browser holds it as JSON (`to_json`) and hands it back with every event, so that nothing is lost
when this process is started anew.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

__all__ = ["Answer", "Conversation", "Turn", "split_thinking"]

_TITLE_CHARS = 60
_OPEN, _CLOSE = "<think>", "</think>"


@dataclass(frozen=True)
class Answer:
    """One answer, whole or as far as it came.

    Attributes:
        content: what the model wrote, a thinking block included where it stands in the text itself.
        reasoning: thinking that the server sent apart from the content.
        finish_reason: the API's, or `stopped` by the user; "" while it is being written.
        ttft_ms: from sending the request to the first piece of text.
        tokens_per_s: after the first token.
        reward: of the reward model; None where there is none.
        temperature: as the request had it; None for the model's default.
        error: a sentence in place of what is missing.
        error_code: of `ApiFailure`, as `error_status` and `error_param` are; by it the error is told in any language.
    """

    model: str = ""
    content: str = ""
    reasoning: str = ""
    finish_reason: str = ""
    ttft_ms: float | None = None
    tokens_per_s: float | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    reward: float | None = None
    temperature: float | None = None
    error: str = ""
    error_code: str = ""
    error_status: int = 0
    error_param: str | None = None

    @property
    def text(self) -> str:
        """The answer without its thinking: what the next turn and the reward model see."""
        return split_thinking(self.content)[1]

    @property
    def thinking(self) -> str:
        """The thinking, wherever it stood."""
        return "\n\n".join(part for part in (self.reasoning.strip(), split_thinking(self.content)[0]) if part)


@dataclass(frozen=True)
class Turn:
    """A question, and for each side its answers; the conversation continues from the first answer of a side."""

    question: str
    sides: tuple[tuple[Answer, ...], ...] = ()

    def side_of(self, side: int) -> int:
        """The side that `side` continues from: where only one was asked, both share its answers."""
        return max(0, min(side, len(self.sides) - 1))

    def answers(self, side: int) -> tuple[Answer, ...]:
        """What `side` shows and continues from."""
        return self.sides[self.side_of(side)] if self.sides else ()


@dataclass(frozen=True)
class Conversation:
    """All turns under one system prompt.

    Attributes:
        created: in seconds since 1970.
        copy_of: the conversation that another tab went on with at the same time; "" for an original.
    """

    id: str = field(default_factory=lambda: secrets.token_hex(6))
    created: float = field(default_factory=time.time)
    system: str = ""
    turns: tuple[Turn, ...] = ()
    copy_of: str = ""

    @property
    def title(self) -> str:
        """The first question, cut to a line."""
        first = " ".join(self.turns[0].question.split()) if self.turns else ""
        return first if len(first) <= _TITLE_CHARS else first[: _TITLE_CHARS - 1] + "…"

    def asked(self, question: str, num_sides: int) -> Conversation:
        """With one more question and no answer yet."""
        return replace(self, turns=(*self.turns, Turn(question, ((),) * num_sides)))

    def answered(self, sides: Sequence[Sequence[Answer]]) -> Conversation:
        """With these answers to the last question."""
        last = replace(self.turns[-1], sides=tuple(tuple(side) for side in sides))
        return replace(self, turns=(*self.turns[:-1], last))

    def cut(self, num_turns: int) -> Conversation:
        """Only the first turns."""
        return replace(self, turns=self.turns[:num_turns])

    def stopped(self) -> Conversation:
        """Unfinished answers are marked, and no question is left without one: two would be shown as one message."""
        turns = [
            [tuple(_stopped(one) for one in side or (Answer(),)) for side in turn.sides or ((),)] for turn in self.turns
        ]
        marked = (replace(turn, sides=tuple(sides)) for turn, sides in zip(self.turns, turns, strict=True))
        return replace(self, turns=tuple(marked))

    def messages(self, side: int, num_turns: int | None = None) -> list[dict[str, str]]:
        """What the API is sent: the turns of one side, where an answer failed without it."""
        messages = [{"role": "system", "content": self.system}] if self.system.strip() else []
        for turn in self.turns[:num_turns]:
            messages.append({"role": "user", "content": turn.question})
            answers = turn.answers(side)
            if answers and answers[0].text:
                messages.append({"role": "assistant", "content": answers[0].text})
        return messages

    def to_json(self) -> dict[str, Any]:
        """Plain JSON, with the title for whoever lists conversations."""
        return {"version": 1, "title": self.title, **asdict(self)}

    @classmethod
    def from_json(cls, data: Any) -> Conversation:
        """What `to_json` wrote. Anything else (an older browser's, somebody's by hand) is a new conversation."""
        if not isinstance(data, Mapping) or data.get("version") != 1:
            return cls()
        try:
            turns = tuple(
                Turn(str(turn["question"]), tuple(tuple(_answer_of(one) for one in side) for side in turn["sides"]))
                for turn in data["turns"]
            )
            system, copy_of = str(data.get("system", "")), str(data.get("copy_of", ""))
            return cls(str(data["id"]), float(data["created"]), system, turns, copy_of)
        except (KeyError, TypeError, ValueError):
            return cls()


def split_thinking(content: str) -> tuple[str, str]:
    """Thinking and answer of a text that holds a thinking block, closed or still open.

    Some chat templates open the block in the prompt, so that the text begins inside of it.
    """
    head, opened, rest = content.partition(_OPEN)
    if not opened:
        before, closed, after = content.partition(_CLOSE)
        return (before.strip(), after.strip()) if closed else ("", content)
    if head.strip():
        return "", content  # somebody writes about the tag
    thinking, _, answer = rest.partition(_CLOSE)
    return thinking.strip(), answer.lstrip()


def _stopped(answer: Answer) -> Answer:
    return answer if answer.finish_reason or answer.error else replace(answer, finish_reason="stopped")


def _answer_of(data: Mapping[str, Any]) -> Answer:
    return Answer(**{one.name: data[one.name] for one in fields(Answer) if one.name in data})
