"""Texts to calibrate on: a file's rows, or those that come with qserve, as lines of JSON for the process."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from qserve.core.facts import find_file
from qserve.errors import UsageError
from qserve.rows.conversation import conversation_of
from qserve.rows.fields import Fields

__all__ = ["Texts", "bundled_texts", "demo_texts", "texts_in"]

_BUNDLED = "calibration/conversations.jsonl"
_NUM_DEMO = 256
_SEED = 1234

Row = dict[str, Any]


@dataclass(frozen=True)
class Texts:
    """`rows` have either `text` or `messages`; `source` tells a model card where they are from."""

    source: str
    rows: tuple[Row, ...]

    def write(self, file: Path) -> None:
        """A row a line."""
        file.write_text("".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in self.rows))


def texts_in(file: Path) -> Texts:
    """Of a .jsonl file a row's `text` or conversation, of any format of `qserve train`; of a .txt paragraphs.

    Raises UsageError for another file, and for a row that holds no text.
    """
    if not file.is_file():
        raise UsageError(f"--texts {file} is no file; it takes .jsonl (rows with text or messages) or .txt")
    try:
        content = file.read_text()
    except UnicodeDecodeError as error:
        raise UsageError(f"--texts {file} is not in UTF-8: {error}") from None
    if file.suffix == ".txt":
        rows = [{"text": part.strip()} for part in content.split("\n\n") if part.strip()]
    elif file.suffix in (".jsonl", ".json"):
        rows = list(_rows(file, content))
    else:
        raise UsageError(f"--texts {file}: it takes a file that ends in .jsonl (rows with text or messages) or .txt")
    if not rows:
        raise UsageError(f"--texts {file} has no texts")
    return Texts(f"{len(rows):,} texts of {file.name}", tuple(rows))


def _rows(file: Path, content: str) -> Iterator[Row]:
    for number, line in enumerate(content.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise UsageError(f"--texts {file}, line {number} is not JSON: {error}") from None
        found = _row(row) if isinstance(row, dict) else None
        if found is None:
            raise UsageError(f"--texts {file}, line {number} has neither `text` nor a conversation (`messages`)")
        yield found


def _row(row: Row) -> Row | None:
    if isinstance(row.get("text"), str) and row["text"].strip():
        return {"text": row["text"]}
    found = conversation_of(Fields(row))
    return None if found is None else {"messages": [turn.message for turn in found[0]]}


def demo_texts() -> Texts:
    """Of what the demo model was trained on; none of the questions that measure it."""
    from qserve.demo.conversations import sample_conversation

    rng = Random(_SEED)  # noqa: S311 - data, no secrets
    rows = [{"text": "".join(piece for piece, _ in sample_conversation(rng).pieces())} for _ in range(_NUM_DEMO)]
    return Texts(f"{_NUM_DEMO} conversations of the demo model's own kind", tuple(rows))


def bundled_texts() -> Texts:
    """Conversations in English, Chinese and code that come with qserve, and the chapters of Python's manual."""
    chats = texts_in(find_file(_BUNDLED)).rows
    try:
        topics: dict[str, str] = importlib.import_module("pydoc_data.topics").topics
    except ImportError:  # some distributions leave it out
        topics = {}
    manual = tuple({"text": text} for text in topics.values())
    source = f"{len(chats)} bundled conversations and {len(manual)} chapters of Python's manual"
    return Texts(source, (*chats, *manual))
