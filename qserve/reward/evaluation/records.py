"""Files of texts to score: JSON lines in the shapes that data sets have.

    {"messages": [{"role", "content"}, …]}                  a conversation; also "conversation"
    {"text": "…"}                                           templated already
    {"prompt": …, "response": "…"}                          also "completion", "answer"
    {"prompt": …, "responses": ["…", …]}                    several answers to one prompt
    {"prompt": …, "chosen": "…", "rejected": "…"}           a preference; without a prompt, two whole conversations
    {"prompt": …, "chosen": ["…"], "rejected": ["…", …]}    several of either, as RewardBench 2 and RM-Bench have them

A prompt is a string (the user's turn) or messages.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qserve.encodings import read_text
from qserve.errors import UsageError

__all__ = ["Content", "Record", "read_records"]

Message = dict[str, Any]
Content = str | list[Message]
"""A templated text, or messages."""

_ANSWER_KEYS = ("response", "completion", "answer")
_SUBSET_KEYS = ("subset", "domain", "category", "section", "source")


@dataclass(frozen=True)
class Record:
    """One line. `contents` are what to score; the first `num_chosen` of them are the preferred ones of a preference.

    `num_chosen` is None where the line states no preference. `data` is the line itself.
    """

    line: int
    contents: tuple[Content, ...]
    num_chosen: int | None
    subset: str | None
    data: Mapping[str, Any]


def read_records(file: Path) -> list[Record]:
    """Every line of `file`. Raises UsageError with the line's number for one that is none of the shapes."""
    lines = read_text(file, "a file of JSON lines").split("\n")
    records = list(_records(lines, file))
    if not records:
        raise UsageError(f"{file} holds no line; each is a JSON object, for example {{'prompt': …, 'response': …}}")
    return records


def _records(lines: Sequence[str], file: Path) -> Iterator[Record]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            data = json.loads(line)
        except ValueError as error:
            raise UsageError(f"{file}, line {number} is not valid JSON ({error})") from None
        if not isinstance(data, dict):
            raise UsageError(f"{file}, line {number} is a JSON {type(data).__name__}; it must be an object")
        contents, num_chosen = _contents(data, f"{file}, line {number}")
        subset = next((str(data[key]) for key in _SUBSET_KEYS if isinstance(data.get(key), str)), None)
        yield Record(number, contents, num_chosen, subset, data)


def _contents(data: Mapping[str, Any], where: str) -> tuple[tuple[Content, ...], int | None]:
    if "chosen" in data and "rejected" in data:
        chosen, rejected = _answers(data["chosen"]), _answers(data["rejected"])
        sides = [_whole(data.get("prompt"), answer, where) for answer in (*chosen, *rejected)]
        return tuple(sides), len(chosen)
    if isinstance(data.get("responses"), list) and data["responses"]:
        return tuple(_whole(data.get("prompt"), answer, where) for answer in data["responses"]), None
    for key in ("messages", "conversation"):
        if _is_messages(data.get(key)):
            return (data[key],), None
    if isinstance(data.get("text"), str):
        return (data["text"],), None
    for key in _ANSWER_KEYS:
        if key in data:
            return (_whole(data.get("prompt"), data[key], where),), None
    raise UsageError(
        f"{where} has the fields {', '.join(data) or 'none'}; it needs messages, text, prompt with response or "
        "responses, or chosen with rejected"
    )


def _answers(value: Any) -> list[Any]:
    """One answer (a string, or messages), or a list of them."""
    return value if isinstance(value, list) and value and not _is_messages(value) else [value]


def _whole(prompt: Any, answer: Any, where: str) -> Content:
    """The conversation of a prompt and an answer."""
    if _is_messages(answer):
        return [*_turns(prompt, where), *answer]
    if not isinstance(answer, str):
        raise UsageError(f"{where}: an answer is a string or a list of messages, found {type(answer).__name__}")
    if prompt is None:
        raise UsageError(f"{where} has an answer that is a string, but no prompt that it answers")
    return [*_turns(prompt, where), {"role": "assistant", "content": answer}]


def _turns(prompt: Any, where: str) -> list[Message]:
    if prompt is None:
        return []
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}]
    if _is_messages(prompt):
        return list(prompt)
    raise UsageError(f"{where}: prompt is a string or a list of messages, found {type(prompt).__name__}")


def _is_messages(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, dict) and "role" in one for one in value)
