"""Prompts from a file: ShareGPT-shaped JSON, or JSON lines."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qserve.bench.counting import Counter
from qserve.bench.endpoints import Prompt
from qserve.encodings import read_text
from qserve.errors import UsageError

__all__ = ["Entry", "FromFile", "read_dataset"]

_PROMPT_FIELDS = ("prompt", "question", "instruction", "text", "input")
_ANSWER_FIELDS = ("response", "completion", "answer", "output")
_USERS = {"human", "user"}
_DEFAULT_OUTPUT_LEN = 128


@dataclass(frozen=True)
class Entry:
    """One prompt of a file; `answers` as the file has them, `output_len` 0 where it does not say."""

    text: str
    messages: tuple[dict[str, Any], ...]
    answers: tuple[str, ...]
    output_len: int


class _BadRow(Exception):
    """What is wrong with an entry."""


def read_dataset(file: Path) -> list[Entry]:
    """Raises UsageError where the file, or an entry of it, has no prompt that we understand."""
    text = read_text(file, "a JSON list, or a file of JSON lines,", f"--dataset {file}")
    entries = []
    for where, row in _rows(file, text):
        try:
            entries.append(_entry(row))
        except _BadRow as bad:
            raise UsageError(f"--dataset {file}, {where} {bad}") from None
    found = [entry for entry in entries if entry is not None]
    if not found:
        raise UsageError(f"--dataset {file} has no prompt")
    return found


def _rows(file: Path, text: str) -> Iterator[tuple[str, Any]]:
    """(where it stands, what it is)."""
    if text.lstrip().startswith("["):
        try:
            yield from ((f"entry {number}", row) for number, row in enumerate(json.loads(text), 1))
        except ValueError as error:
            raise UsageError(f"--dataset {file} begins like a JSON list, but is not one: {error}") from None
        return
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                yield f"line {number}", json.loads(line)
            except ValueError as error:
                what = f"is not valid JSON ({error.args[0].partition(':')[0]}); it takes a JSON list, or an object "
                "per line"
                raise UsageError(f"--dataset {file}: line {number} {what}") from None


def _entry(row: Any) -> Entry | None:
    """None for a conversation that has nothing to ask; ShareGPT has empty ones, and some that are only an answer."""
    if isinstance(row, str):
        return Entry(_asked(row), (), (), 0)
    if not isinstance(row, dict):
        raise _BadRow(f"is {str(row)[:60]!r}, which is neither a text nor an object")
    output_len = _output_len(row)
    for name in ("conversations", "messages"):
        if row.get(name) is not None:
            return _of_turns(row[name], name, output_len)
    prompt = next((row[name] for name in _PROMPT_FIELDS if isinstance(row.get(name), str)), None)
    if prompt is None:
        raise _BadRow(
            f"has none of {', '.join(_PROMPT_FIELDS)}, 'messages' or 'conversations'; it has "
            f"{', '.join(map(str, row)) or 'nothing'}"
        )
    answers = row.get("responses") or [row[name] for name in _ANSWER_FIELDS if isinstance(row.get(name), str)]
    if not isinstance(answers, list) or not all(isinstance(answer, str) for answer in answers):
        raise _BadRow("has 'responses' that are not a list of texts")
    return Entry(_asked(prompt), (), tuple(answers), output_len)


def _asked(prompt: str) -> str:
    if not prompt.strip():
        raise _BadRow("has an empty prompt")
    return prompt


def _output_len(row: Mapping[str, Any]) -> int:
    for name in ("output_len", "output_tokens", "max_tokens"):
        value = row.get(name)
        if value is None:
            continue
        if not isinstance(value, int) or value < 1:
            raise _BadRow(f"has {name} {value!r}, which is not a number of tokens")
        return value
    return 0


def _of_turns(turns: Any, name: str, output_len: int) -> Entry | None:
    """The first question, as `vllm bench` takes it, and all that stands before it."""
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        raise _BadRow(f"has {name!r} that are not a list of turns")
    exchange = [
        (str(turn.get("from") or turn.get("role")), turn.get("value") or turn.get("content") or "") for turn in turns
    ]
    first = next((index for index, (who, words) in enumerate(exchange) if who in _USERS and _text(words).strip()), None)
    if first is None:
        return None
    system = tuple({"role": "system", "content": words} for who, words in exchange[:first] if who == "system")
    answers = tuple(_text(words) for who, words in exchange[first + 1 : first + 2] if who not in _USERS)
    question = exchange[first][1]
    is_plain = isinstance(question, str) and not system
    messages = () if is_plain else (*system, {"role": "user", "content": question})
    return Entry(_text(question), messages, answers, output_len)


def _text(content: Any) -> str:
    """Of a turn, which OpenAI's clients also write as a list of parts."""
    if not isinstance(content, list):
        return str(content)
    return "".join(str(part.get("text") or "") for part in content if isinstance(part, dict))


@dataclass(frozen=True)
class FromFile:
    """An endless supply: the file in random order, and again.

    Attributes:
        output_len: tokens to generate; None: what the entry says, else the length of its answer, else 128.
        prefix: in front of every prompt.
        best_of: answers that a reward request scores; 0: those that the entry has.
    """

    entries: list[Entry]
    counter: Counter
    output_len: int | None
    prefix: str = ""
    best_of: int = 0
    _lengths: dict[str, int] = field(default_factory=dict, repr=False)

    def prompts(self, rng: random.Random) -> Iterator[Prompt]:
        """The same ones for the same seed."""
        while True:
            for entry in rng.sample(self.entries, len(self.entries)):
                yield self._prompt(entry, rng)

    def _prompt(self, entry: Entry, rng: random.Random) -> Prompt:
        text = f"{self.prefix} {entry.text}" if self.prefix else entry.text
        messages = entry.messages
        if messages and self.prefix:
            messages = (*messages[:-1], {"role": "user", "content": text})
        # Asking the server while it is under load would be a load of its own, and it tells the count by itself.
        num_tokens = 0 if self.counter.is_remote else self.counter.count(text)
        return Prompt(text, self._output_len(entry), num_tokens, messages, self._answers(entry, rng))

    def _output_len(self, entry: Entry) -> int:
        if self.output_len or entry.output_len:
            return self.output_len or entry.output_len
        return self._counted(entry.answers[0]) if entry.answers else _DEFAULT_OUTPUT_LEN

    def _counted(self, answer: str) -> int:
        if answer not in self._lengths:
            self._lengths[answer] = max(1, self.counter.count(answer))
        return self._lengths[answer]

    def _answers(self, entry: Entry, rng: random.Random) -> tuple[str, ...]:
        """Best of N from a file with fewer answers takes those of other entries as well."""
        answers = entry.answers or (entry.text,)
        while len(answers) < self.best_of:
            answers += rng.choice(self.entries).answers or (entry.text,)
        return answers[: self.best_of] if self.best_of else answers
