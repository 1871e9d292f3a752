"""The columns of the table that is trained on: the same in every row, with types that change no row of another.

`datasets` infers types from the first rows. A struct of one row's arguments would then give every other row's the same
names, null where it has none; declared as JSON each row is read as it was written. TRL's own command reads the types
from the same file.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from qserve.errors import UsageError
from qserve.training.data.rows import TEMPLATE_FIELDS, Row, RowError

__all__ = ["TYPES_FILE", "Columns"]

TYPES_FILE = "README.md"
"""Where `datasets` looks for the types of a folder's columns."""
_MESSAGES = ("prompt", "completion", "chosen", "rejected", "response")
_TYPES = {"margin": {"dtype": "float64"}, "row": {"dtype": "int64"}, "scores": {"list": "float64"}}
_NEEDED = ("tools", "tool_calls")
"""What a template must write: without it an answer that calls a tool is an empty one."""


class Columns:
    """What the first row has, and `TEMPLATE_FIELDS` in all rows where any has it."""

    def __init__(self) -> None:
        self._first: Row | None = None
        self._template_fields: set[str] = set()
        self._counts: Counter[str] = Counter()
        """How many rows tell the template each of its fields."""

    @property
    def names(self) -> tuple[str, ...]:
        """In the order of the rows, without where a row is from."""
        named = [name for name in self._first or () if name not in TEMPLATE_FIELDS]
        return (*named, *(name for name in TEMPLATE_FIELDS if name in self._template_fields))

    def add(self, made: Sequence[Row]) -> None:
        """Raises RowError for a row that has other columns than those before it."""
        for row in made:
            if self._first is None:
                self._first = row
            own, first = _own(row), _own(self._first)
            if own != first:
                raise RowError(f"gives {', '.join(own)}, but the first rows give {', '.join(first)}")
            self._template_fields |= row.keys() & TEMPLATE_FIELDS.keys()
            self._counts.update(_fields_of_template(row))

    def unwritten(self, template: str | None) -> dict[str, int]:
        """Fields that rows have and the template never names, with how many rows have them."""
        if not template:
            return {}
        return {name: count for name, count in self._counts.items() if name not in template}

    def refuse_unwritten(self, template: str | None) -> None:
        """Raises UsageError where calls of tools, or tools, would be left out."""
        missing = [name for name in _NEEDED if name in self.unwritten(template)]
        if missing:
            told = " and ".join(f"{self._counts[name]:,} rows have {name!r}" for name in missing)
            raise UsageError(
                f"{told}, but the model's chat template does not write them, so the training texts would lack them; "
                "take a model with a template that supports tools, or leave these rows out"
            )

    def write(self, folder: Path) -> None:
        """Adds a file of the columns' types; rows that lack one of `TEMPLATE_FIELDS` get it."""
        for file in folder.glob("*.jsonl"):
            if self._template_fields:
                _fill(file, {name: TEMPLATE_FIELDS[name] for name in TEMPLATE_FIELDS if name in self._template_fields})
        features = [{"name": name, **self._type(name)} for name in (*self.names, "row", "source")]
        written = yaml.safe_dump({"dataset_info": {"features": features}}, sort_keys=False)
        (folder / TYPES_FILE).write_text(f"---\n{written}---\n")

    def _type(self, name: str) -> dict[str, Any]:
        if name in TEMPLATE_FIELDS:
            return {"dtype": "json"}
        if name in _MESSAGES and isinstance((self._first or {}).get(name), list):
            return {"list": "json"}
        return _TYPES.get(name, {"dtype": "string"})


def _own(row: Row) -> tuple[str, ...]:
    return tuple(name for name in row if name not in TEMPLATE_FIELDS)


def _fields_of_template(row: Row) -> set[str]:
    """The fields of a row that a template may know or not."""
    turns = [turn for name in _MESSAGES if isinstance(row.get(name), list) for turn in row[name]]
    held = {name for turn in turns for name in turn if name in ("tool_calls", "reasoning_content")}
    return held | ({"tools"} & row.keys()) | set(row.get("chat_template_kwargs") or ())


def _fill(file: Path, missing: Row) -> None:
    """Rewrites the rows of a file, one at a time."""
    fresh = file.with_suffix(".fresh")
    with file.open() as source, fresh.open("w") as sink:
        for line in source:
            sink.write(json.dumps({**missing, **json.loads(line)}, ensure_ascii=False) + "\n")
    fresh.replace(file)
