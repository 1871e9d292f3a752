"""A preference: one prompt, better and worse answers. Whoever compares answers reads rows by this."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from qserve.rows.conversation import answer_of, checked_answer
from qserve.rows.fields import Fields, RowError
from qserve.rows.human import turns_in
from qserve.rows.sides import sides_of
from qserve.rows.tools import template_fields_of
from qserve.rows.turns import Message, Turn, messages_of

__all__ = ["Answer", "Preference", "preference_of"]

Answer = str | list[Message]
"""A whole text, prompt included, or the turns after the prompt."""


@dataclass(frozen=True)
class Preference:
    """`prompt` is None where the answers are whole texts. `template_fields`: see `template_fields_of`."""

    prompt: list[Message] | None
    chosen: tuple[Answer, ...]
    rejected: tuple[Answer, ...]
    template_fields: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_tie(self) -> bool:
        """Whether a better answer is word for word a worse one."""
        return any(one in self.rejected for one in self.chosen)


def preference_of(fields: Fields) -> Preference | None:
    """None where the row states none. Raises RowError for one that can't be read."""
    sides = sides_of(fields)
    if sides is None:
        return None
    template_fields = template_fields_of(sides.with_tools)
    if sides.with_tools is not fields:
        fields.include(sides.with_tools)
    values = [("chosen", one) for one in sides.better] + [("rejected", one) for one in sides.worse]
    if sides.lead is None and all(isinstance(value, str) for _, value in values):
        parsed = [turns_in(value) for _, value in values]
        if None in parsed:
            return _of_texts([_text(name, value) for name, value in values], len(sides.better), template_fields)
        answers = [turns or [] for turns in parsed]
    else:
        answers = [_turns(name, value, sides.lead, fields) for name, value in values]
    prompt, rest = _split(sides.lead, answers)
    if any(turn.is_masked for turns in rest for turn in turns if turn.role == "assistant"):
        raise RowError("an answer of a pair is marked as left out of the loss")
    made = [messages_of(one) for one in rest]
    count = len(sides.better)
    return Preference(messages_of(prompt), tuple(made[:count]), tuple(made[count:]), template_fields)


def _of_texts(texts: list[Answer], count: int, template_fields: Mapping[str, Any]) -> Preference:
    if template_fields:
        raise RowError(
            f"{' and '.join(template_fields)} can't be used with whole texts, which no chat template renders"
        )
    return Preference(None, tuple(texts[:count]), tuple(texts[count:]))


def _text(name: str, value: str) -> str:
    if not value.strip():
        raise RowError("ends with an empty answer; there is nothing to score", name, "empty_input")
    return value


def _turns(name: str, value: Any, lead: Sequence[Turn] | None, fields: Fields) -> list[Turn]:
    """An answer's turns; a text written as a conversation is one."""
    if not isinstance(value, str):
        return answer_of(value, name, fields)
    if (turns := turns_in(value)) is not None:
        return checked_answer(turns, name)
    if lead is None:
        raise RowError(
            "is a text without 'prompt'; give one, or whole conversations, or whole texts on both sides", name
        )
    return answer_of(value.strip() if _is_written(fields) else value, name, fields)


def _is_written(fields: Fields) -> bool:
    """Whether the prompt is a text of turns, after whose end an answer begins with a blank."""
    prompt = fields.peek("prompt")
    return isinstance(prompt, str) and turns_in(prompt) is not None


def _split(lead: Sequence[Turn] | None, answers: list[list[Turn]]) -> tuple[list[Turn], list[list[Turn]]]:
    """(the prompt, what each answer says after it). Answers may be whole conversations, with the prompt in them."""
    if lead is not None and all(turns[0].role == "assistant" for turns in answers):
        return _checked(list(lead)), answers
    whole = answers if lead is None else [_after(lead, turns) for turns in answers]
    count = _num_shared(whole)
    if all(turn.role not in ("user", "tool") for turn in whole[0][:count]):
        raise RowError("chosen and rejected share no turn of a user, so they are not answers to one prompt")
    return whole[0][:count], [turns[count:] for turns in whole]


def _checked(prompt: list[Turn]) -> list[Turn]:
    if prompt[-1].role == "assistant":
        said = "ends with the assistant's message already; it must end with the user's (or a tool's)"
        raise RowError(said, "prompt")
    return prompt


def _num_shared(conversations: Sequence[Sequence[Turn]]) -> int:
    """How many turns all of them begin with; the last turn of each is its answer, whatever the others say."""
    most = min(len(turns) for turns in conversations) - 1
    first = conversations[0]
    differs = (i for i in range(most) if any(turns[i].message != first[i].message for turns in conversations))
    count = next(differs, most)
    while count and first[count - 1].role == "assistant":  # which is no end of a prompt
        count -= 1
    return count


def _after(lead: Sequence[Turn], turns: list[Turn]) -> list[Turn]:
    """The whole conversation: `turns` after `lead`, of which they may hold some or all."""
    for size in range(len(lead), 0, -1):
        if _same(lead[-size:], turns[:size]):
            return [*lead[:-size], *turns]
    if any(_same(lead, turns[start : start + len(lead)]) for start in range(1, len(turns))):
        return turns
    if turns[0].role in ("assistant", "tool") or (turns[0].role == "user" and lead[-1].role in ("assistant", "system")):
        return [*lead, *turns]
    raise RowError("chosen and rejected are conversations that do not begin with the row's prompt")


def _same(some: Sequence[Turn], others: Sequence[Turn]) -> bool:
    """Whether they say the same; blanks around a text make no difference."""
    return [_said(turn) for turn in some] == [_said(turn) for turn in others]


def _said(turn: Turn) -> Message:
    return {**turn.message, "content": turn.message["content"].strip()}
