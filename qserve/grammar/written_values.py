"""How a parameter of a call in Qwen3-Coder's format is written: a string as it is, everything else as JSON.

Its grammar and its reader both ask here, so that what the one lets through the other reads as the schema means it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from qserve.grammar.references import followed

__all__ = ["NULL", "TextValue", "text_value"]

NULL = "null"
_REMARKS = frozenset({"title", "description", "default", "examples", "deprecated", "$comment"})
_OF_STRINGS = frozenset({"type", "enum", "const", "pattern", "format", "minLength", "maxLength"})


@dataclass(frozen=True)
class TextValue:
    """A parameter that is written as text.

    Attributes:
        schema: of the string.
        or_null: it may be null, which `null` stands for.
    """

    schema: Mapping[str, Any]
    or_null: bool = False

    @property
    def choices(self) -> list[str] | None:
        """The strings that it may be; None where they are not listed."""
        listed = self.schema.get("enum", [self.schema["const"]] if "const" in self.schema else None)
        return None if listed is None else [one for one in listed if isinstance(one, str)]


def text_value(schema: Any, root: Mapping[str, Any]) -> TextValue | None:
    """The text that a value of `schema` is, within the document `root`; None where it is JSON."""
    schema = followed(schema, root)
    if not isinstance(schema, Mapping):
        return None
    asked = schema.keys() - _REMARKS
    if len(asked) == 1 and isinstance(ways := schema.get("anyOf", schema.get("oneOf")), list) and len(ways) == 2:
        strings = [found for way in ways if (found := text_value(way, root)) is not None]
        or_null = any(followed(way, root) == {"type": "null"} for way in ways)
        return TextValue(strings[0].schema, or_null=True) if len(strings) == 1 and or_null else None
    return _of_strings(schema) if asked <= _OF_STRINGS else None


def _of_strings(schema: Mapping[str, Any]) -> TextValue | None:
    kinds = schema.get("type")
    listed = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if listed is not None:
        if not isinstance(listed, list) or not any(isinstance(one, str) for one in listed):
            return None
        if not all(isinstance(one, str | None) for one in listed):
            return None
    or_null = listed is None or None in listed
    if kinds == "string" or (kinds is None and listed is not None):
        return TextValue(schema, or_null=kinds is None and or_null)
    if isinstance(kinds, list) and "string" in kinds and set(kinds) <= {"string", NULL}:
        return TextValue(schema, or_null=or_null and NULL in kinds)
    return None
