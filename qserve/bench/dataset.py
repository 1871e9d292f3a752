"""Prompts from a file: ShareGPT-shaped JSON, or JSON lines."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qserve.bench.counting import Counter
from qserve.bench.endpoints import Prompt
from qserve.errors import UsageError

__all__ = ["FromFile", "read_dataset"]

_PROMPT_FIELDS = ("prompt", "question", "instruction", "text", "input")
_ANSWER_FIELDS = ("response", "completion", "answer", "output")
_USERS = {"human", "user"}
_DEFAULT_OUTPUT_LEN = 128


@dataclass(frozen=True)
class Entry:
    """One prompt of a file; `answers` as the file has them, `output_len` 0 where it does not say."""

    text: str
    messages: tuple[dict[str, str], ...]
    answers: tuple[str, ...]
    output_len: int


def read_dataset(file: Path) -> list[Entry]:
    """Raises UsageError where the file, or a line of it, has no prompt that we understand."""
    try:
        text = file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--dataset {file}: {getattr(error, 'strerror', None) or 'it is no text'}") from error
    entries = [_entry(row, f"{file}, entry {number}") for number, row in enumerate(_rows(file, text), 1)]
    found = [entry for entry in entries if entry is not None]
    if not found:
        raise UsageError(f"--dataset {file} holds no prompt")
    return found


def _rows(file: Path, text: str) -> list[Any]:
    try:
        if text.lstrip().startswith("["):
            return list(json.loads(text))
        return [json.loads(line) for line in text.splitlines() if line.strip()]
    except ValueError as error:
        raise UsageError(f"--dataset {file} is neither a JSON list nor JSON lines: {error}") from None


def _entry(row: Any, where: str) -> Entry | None:
    """None for a conversation that has nothing to ask; ShareGPT has some that begin with the answer."""
    if isinstance(row, str):
        return Entry(row, (), (), 0)
    if not isinstance(row, dict):
        raise UsageError(f"--dataset {where}: {str(row)[:60]!r} is no object")
    output_len = int(row.get("output_len") or row.get("output_tokens") or row.get("max_tokens") or 0)
    turns = row.get("conversations") or row.get("messages")
    if turns:
        return _of_turns(turns, output_len)
    prompt = next((row[name] for name in _PROMPT_FIELDS if isinstance(row.get(name), str)), None)
    if prompt is None:
        raise UsageError(
            f"--dataset {where} has none of {', '.join(_PROMPT_FIELDS)}, 'messages' or 'conversations'; it has "
            f"{', '.join(map(str, row)) or 'nothing'}"
        )
    answers = row.get("responses") or [row[name] for name in _ANSWER_FIELDS if isinstance(row.get(name), str)]
    return Entry(prompt, (), tuple(map(str, answers)), output_len)


def _of_turns(turns: list[dict[str, Any]], output_len: int) -> Entry | None:
    """The first question, as `vllm bench` takes it, and all that stands before it."""
    said = [
        (str(turn.get("from") or turn.get("role")), str(turn.get("value") or turn.get("content") or ""))
        for turn in turns
    ]
    asked = next((index for index, (who, _) in enumerate(said) if who in _USERS), None)
    if asked is None:
        return None
    system = tuple({"role": "system", "content": text} for who, text in said[:asked] if who == "system")
    answers = tuple(text for who, text in said[asked + 1 : asked + 2] if who not in _USERS)
    messages = (*system, {"role": "user", "content": said[asked][1]}) if system else ()
    return Entry(said[asked][1], messages, answers, output_len)


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
