"""One row of a data set, which of its fields were read, and what is said of a row that can't be read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["Fields", "RowError", "told_unread"]

# What data sets keep beside a row: where it is from, and what somebody thought of it. Nothing here changes a text.
_ABOUT = frozenset(
    (
        "id",
        "ids",
        "idx",
        "index",
        "uid",
        "uuid",
        "row",
        "rowid",
        "row_id",
        "line",
        "number",
        "source",
        "sources",
        "dataset",
        "dataset_name",
        "data_source",
        "origin",
        "subset",
        "domain",
        "category",
        "section",
        "split",
        "task",
        "task_id",
        "task_type",
        "type",
        "kind",
        "topic",
        "tags",
        "tag",
        "lang",
        "language",
        "license",
        "url",
        "meta",
        "metadata",
        "info",
        "extra",
        "extra_info",
        "other_info",
        "created",
        "created_at",
        "date",
        "timestamp",
        "hash",
        "prompt_id",
        "question_id",
        "conversation_id",
        "conv_id",
        "model",
        "models",
        "model_name",
        "generator",
        "judge",
        "annotator",
        "score_chosen",
        "score_rejected",
        "chosen_score",
        "rejected_score",
        "chosen_rating",
        "rejected_rating",
        "chosen-rating",
        "rejected-rating",
        "chosen_model",
        "rejected_model",
        "chosen-model",
        "rejected-model",
        "num_turns",
        "difficulty",
        "quality",
        "ability",
        "parallel_tool_calls",
    )
)
_ABOUT_TURNS = frozenset(
    (
        "id",
        "uuid",
        "index",
        "turn",
        "idx",
        "timestamp",
        "created_at",
        "model",
        "lang",
        "language",
        "annotations",
        "source",
    )
)


class RowError(ValueError):
    """Why a row can't be read. `field` is the one that is wrong, where it is one; then `text` follows its name."""

    def __init__(self, text: str, field: str | None = None, code: str = "invalid_value") -> None:
        super().__init__(text if field is None else f"'{field}' {text}")
        self.text, self.field, self.code = text, field, code


class Fields:
    """One row. `take` reads a field; a field that is null is as if it was not there."""

    def __init__(self, row: Mapping[str, Any]) -> None:
        self._row = row
        self._taken: set[str] = set()
        self._below: Counter[str] = Counter()

    def __contains__(self, name: str) -> bool:
        return self._row.get(name) is not None

    def peek(self, name: str) -> Any:
        """The field, which is not read by that."""
        return self._row.get(name)

    def take(self, *names: str) -> Any:
        """The first of these fields that is there, else None."""
        name = next((name for name in names if name in self), None)
        if name is None:
            return None
        self._taken.add(name)
        return self._row[name]

    def of_turn(self, turn: Mapping[str, Any], known: Iterable[str], what: str = "a turn's") -> None:
        """Counts the fields of a turn, or of something else below a row, that nothing reads."""
        held = (name for name, value in turn.items() if value is not None)
        self._below.update(f"{what} {name!r}" for name in held if name not in known and name not in _ABOUT_TURNS)

    def include(self, within: Fields) -> None:
        """Counts what was not read of an object in this row."""
        self._below += within.unread

    @property
    def unread(self) -> Counter[str]:
        """How often each field is in this row that nothing read and that may have a meaning."""
        names = (name for name in map(str, self._row) if name in self)
        left = (name for name in names if name not in self._taken and name not in _ABOUT)
        return self._below + Counter(repr(name) for name in left)

    def lacks(self, needed: str) -> RowError:
        """What this row has and what it would need."""
        names = ", ".join(map(str, self._row))
        held = f"the fields {names}" if len(self._row) > 1 else f"the one field {names}" if self._row else "no fields"
        return RowError(f"the row has {held}; it needs {needed}")


def told_unread(unread: Mapping[str, int]) -> str | None:
    """One line that names every field that was not read, with its count; None where there is none."""
    if not unread:
        return None
    named = ", ".join(f"{name} {count:,}×" for name, count in sorted(unread.items()))
    return f"fields that are not read: {named}"
