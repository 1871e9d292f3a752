"""Files of texts to score: JSON lines in the shapes that data sets have.

    {"messages": [{"role", "content"}, …]}                  a conversation; also "conversation", "conversations"
    {"text": "…"}                                           templated already
    {"prompt": …, "response": "…"}                          also "completion", "answer", "output"
    {"prompt": …, "responses": ["…", …]}                    several answers to one prompt
    {"prompt": …, "chosen": "…", "rejected": "…"}           a preference, in each form that `qserve train` reads
    {"prompt": …, "chosen": ["…"], "rejected": ["…", …]}    several of either, as RewardBench 2 and RM-Bench have them

A prompt is a string (the user's turn) or messages. `tools` and `chat_template_kwargs` go to the chat template.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from qserve.encodings import read_text
from qserve.errors import UsageError
from qserve.rows.conversation import ANSWERS, CONVERSATIONS, answer_of, conversation_of, lead_of
from qserve.rows.fields import Fields, RowError
from qserve.rows.preference import Answer, Preference, preference_of
from qserve.rows.tools import template_fields_of
from qserve.rows.turns import Message, messages_of

__all__ = ["Content", "Record", "contents_of", "read_records"]

Value = TypeVar("Value")
Content = str | list[Message] | dict[str, Any]
"""A templated text; messages; or an object as /v1/reward takes it: {"messages", "tools"?, "chat_template_kwargs"?}, or
{"text", "add_eos"}, a whole text that the tokenizer's EOS ends."""

_SUBSET_KEYS = ("subset", "domain", "category", "section", "source")
_RESULTS = (
    "reference",
    "reward",
    "rewards",
    "ranking",
    "margin",
    "steps",
    "attributes",
    "truncated",
    "num_tokens",
    "error",
    "chosen_rewards",
    "rejected_rewards",
    "chosen_attributes",
    "rejected_attributes",
    "chosen_num_tokens",
    "rejected_num_tokens",
    "chosen_reward",
    "rejected_reward",
)
"""What rules read of a record, and what `qserve score` has written beside it."""


@dataclass(frozen=True)
class Record:
    """One line. `contents` are what to score; the first `num_chosen` of them are the preferred ones of a preference.

    `num_chosen` is None where the line states no preference. `data` is the line itself, or its number where the line
    is no JSON object.
    """

    line: int
    contents: tuple[Content, ...]
    num_chosen: int | None
    subset: str | None
    data: Mapping[str, Any]
    error: str | None = None
    """Why there are no contents."""

    @property
    def reference(self) -> str | None:
        """What rules and judges compare the answers with."""
        given = self.data.get("reference")
        return given if isinstance(given, str) else None

    def alike(self, values: Sequence[Value]) -> list[Value]:
        """`values` of the contents, equal contents with equal values: those of the first of them. Whoever judged them
        apart did so by rounding or by chance.
        """
        return [values[self.contents.index(content)] for content in self.contents]


def read_records(file: Path, unread: Counter[str] | None = None, *, keep_broken: bool = False) -> list[Record]:
    """Every line of `file`; `unread` counts the fields that nothing reads.

    Raises UsageError with the line's number for one that is none of the shapes; with `keep_broken` only where no line
    is one, and others have their `error`.
    """
    lines = read_text(file, "a file of JSON lines").split("\n")
    records = list(_records(lines, Counter() if unread is None else unread))
    if not records:
        raise UsageError(f"{file} has no lines; each is a JSON object, for example {{'prompt': …, 'response': …}}")
    broken = next((record for record in records if record.error is not None), None)
    if broken is not None and not (keep_broken and any(record.error is None for record in records)):
        raise UsageError(f"{file}, line {broken.line}: {broken.error}")
    return records


def _records(lines: Sequence[str], unread: Counter[str]) -> Iterator[Record]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            data = _object(line)
        except ValueError as error:
            yield Record(number, (), None, None, {"line": number}, str(error))
            continue
        subset = next((str(data[key]) for key in _SUBSET_KEYS if isinstance(data.get(key), str)), None)
        try:
            contents, num_chosen = _contents(data, unread)
        except RowError as error:
            yield Record(number, (), None, subset, data, str(error))
        else:
            yield Record(number, contents, num_chosen, subset, data)


def _object(line: str) -> dict[str, Any]:
    """Raises ValueError with what the line is instead."""
    try:
        data = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"not valid JSON: {error.msg} at character {error.pos + 1}") from None
    except RecursionError:
        raise ValueError("JSON that is nested too deeply") from None
    if not isinstance(data, dict):
        raise ValueError(f"a JSON {type(data).__name__}; it must be an object")
    return data


def _contents(data: Mapping[str, Any], unread: Counter[str]) -> tuple[tuple[Content, ...], int | None]:
    fields = Fields(data)
    preference = preference_of(fields)
    if preference is not None:
        contents, num_chosen = contents_of(preference), len(preference.chosen)
    else:
        contents, num_chosen = _answers(fields), None
    for name in (*_RESULTS, *_SUBSET_KEYS):
        fields.take(name)
    unread.update(fields.unread)
    return contents, num_chosen


def contents_of(preference: Preference) -> tuple[Content, ...]:
    """Its answers as what is scored, the better ones first."""

    def content(answer: Answer) -> Content:
        if isinstance(answer, str):  # as trainers end it
            return {"text": answer, "add_eos": True}
        return _content([*(preference.prompt or ()), *answer], preference.template_fields)

    return tuple(content(answer) for answer in (*preference.chosen, *preference.rejected))


def _content(messages: list[Message], template_fields: Mapping[str, Any]) -> Content:
    return {"messages": messages, **template_fields} if template_fields else messages


def _answers(fields: Fields) -> tuple[Content, ...]:
    several = fields.take("responses")
    if isinstance(several, list) and several:
        lead = lead_of(fields) or []
        if not lead and any(isinstance(one, str) for one in several):
            raise RowError("has answers that are strings, but no prompt that they answer")
        template_fields = template_fields_of(fields)
        answers = (answer_of(one, "responses", fields) for one in several)
        return tuple(_content(messages_of([*lead, *answer]), template_fields) for answer in answers)
    if not any(name in fields for name in CONVERSATIONS) and isinstance(fields.peek("text"), str):
        return (str(fields.take("text")),)
    found = conversation_of(fields)
    if found is not None:
        return (_content(messages_of(found[0]), template_fields_of(fields)),)
    if (name := next((name for name in ANSWERS if name in fields), None)) is not None:
        return (_content(messages_of(_unasked(fields.take(name), fields)), template_fields_of(fields)),)
    raise fields.lacks("messages, or text, or prompt with response or responses, or chosen with rejected")


def _unasked(value: Any, fields: Fields) -> Any:
    """A whole conversation in the answer's place."""
    if isinstance(value, str):
        raise RowError("has an answer that is a string, but no prompt that it answers")
    return answer_of(value, "an answer", fields)
