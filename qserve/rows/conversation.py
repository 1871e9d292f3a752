"""A row's turns: what is asked, and what is answered, in whatever fields they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qserve.rows.fields import Fields, RowError
from qserve.rows.human import turns_in
from qserve.rows.turns import Turn, is_turn, turns_of

__all__ = ["ANSWERS", "CONVERSATIONS", "QUESTIONS", "answer_of", "checked_answer", "conversation_of", "lead_of"]

CONVERSATIONS = ("messages", "conversations", "conversation")
QUESTIONS = ("prompt", "instruction", "query", "question", "input")
ANSWERS = ("completion", "output", "response", "answer")


def conversation_of(fields: Fields) -> tuple[list[Turn], int] | None:
    """All turns, the answer last, and how many of them are given with the question and are no answers to be learned;
    None where the row holds none.
    """
    for name in CONVERSATIONS:
        if (turns := turns_of(fields.peek(name), fields)) is not None:
            fields.take(name)
            _take_repeated(fields, turns)
            return _after_system(turns, fields), 0
    if not any(name in fields for name in ANSWERS):
        return None
    lead = lead_of(fields)
    if lead is None:
        return None
    # "input" may be a question, and then it is no answer; "answer" may be one beside a question.
    is_list = isinstance(fields.peek("prompt"), list | tuple)
    name = next(name for name in ANSWERS if name in fields)
    return [*lead, *answer_of(fields.take(name), name, fields)], len(lead) if is_list else 0


def _take_repeated(fields: Fields, turns: list[Turn]) -> None:
    """The first question once more, as UltraFeedback and UltraChat have it beside the conversation."""
    asked = fields.peek("prompt")
    said = [turn.message["content"].strip() for turn in turns if turn.role == "user"]
    if isinstance(asked, str) and asked.strip() in said:
        fields.take("prompt")


def lead_of(fields: Fields) -> list[Turn] | None:
    """The turns before an answer, by a field of their own; None where there is none."""
    name = next((name for name in QUESTIONS if name in fields), None)
    if name is None:
        return None
    asked = fields.take(name)
    turns = turns_of([asked] if is_turn(asked) else asked, fields)
    if turns is not None:
        return _after_system(turns, fields)
    if not isinstance(asked, str):
        raise RowError(f"must be a text or a list of messages; found {type(asked).__name__}", name)
    extra = fields.take("input") if name == "instruction" and isinstance(fields.peek("input"), str) else None
    text = f"{asked}\n{extra}" if extra else asked
    if not text.strip():
        raise RowError("is an empty text", name, "empty_input")
    return _after_system(turns_in(text) or [Turn({"role": "user", "content": text})], fields)


def answer_of(value: Any, name: str, fields: Fields) -> list[Turn]:
    """Turns that end with the assistant's, of a text, of a turn or of turns; `name` is the field's."""
    if isinstance(value, str):
        return checked_answer([Turn({"role": "assistant", "content": value})], name)
    turns = turns_of([value] if isinstance(value, Mapping) else value, fields)
    if turns is None:
        raise RowError(f"must be a text or a list of messages; found {type(value).__name__}", name)
    return checked_answer(turns, name)


def checked_answer(turns: list[Turn], name: str) -> list[Turn]:
    """Raises RowError unless the last turn is the assistant's and says something, or calls a tool."""
    last = turns[-1].message
    if last["role"] != "assistant":
        said = f"ends with a message of role '{last['role']}'; the last message of an answer must be the assistant's"
        raise RowError(said, name)
    if not last["content"].strip() and "tool_calls" not in last:
        raise RowError("ends with an empty answer; there is nothing to score", name, "empty_input")
    return turns


def _after_system(turns: list[Turn], fields: Fields) -> list[Turn]:
    """After the row's own system prompt and earlier rounds; turns that begin with a system prompt have their own."""
    if turns[0].role == "system":
        return turns
    system = fields.take("system") if isinstance(fields.peek("system"), str) else None
    before = [Turn({"role": "system", "content": system})] if system else []
    for pair in fields.take("history") or ():
        if not isinstance(pair, list | tuple) or len(pair) != 2 or not all(isinstance(one, str) for one in pair):
            raise RowError("must be a list of [question, answer]", "history")
        before += [Turn({"role": "user", "content": pair[0]}), Turn({"role": "assistant", "content": pair[1]})]
    return [*before, *turns]
