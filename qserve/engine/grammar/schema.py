"""Rewrites a client's JSON schema so that llguidance enforces it fully.

Blanks are those of `json.dumps`, which is what models learned: where any are allowed, small ones write them until their
limit. Objects are closed where the schema does not say: clients name the properties they want.
"""

from __future__ import annotations

import json
from typing import Any

__all__ = ["COMPACT", "embedded", "prepared", "unanchored"]

COMPACT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}

# What llguidance checks; JSON Schema takes other formats for remarks, and so do validators.
_FORMATS = frozenset({
    "date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "unknown", "uri", "uuid",
})  # fmt: skip
_COMBINES = ("allOf", "anyOf", "oneOf", "$ref", "additionalProperties", "patternProperties", "unevaluatedProperties")
# Their values are data, or schemas by name: nothing in them is a keyword.
_DATA = ("const", "enum", "default", "examples")
_BY_NAME = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")


def prepared(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with closed objects, and without formats that nobody checks."""
    # Parts of an allOf describe the same object: closed, each would forbid what the others ask for.
    closes = '"allOf"' not in json.dumps(schema)
    return {**_walked(schema, closes), "x-guidance": COMPACT}


def embedded(schema: dict[str, Any]) -> str:
    """For a Lark grammar."""
    return "%json " + json.dumps(prepared(schema))


def _walked(schema: Any, closes: bool) -> Any:
    if isinstance(schema, list):
        return [_walked(one, closes) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: _walked_keyword(name, value, closes) for name, value in schema.items()}
    if isinstance(found.get("format"), str) and found["format"] not in _FORMATS:
        del found["format"]
    if closes and "properties" in found and not any(name in found for name in _COMBINES):
        found["additionalProperties"] = False
    return found


def _walked_keyword(name: str, value: Any, closes: bool) -> Any:
    if name in _DATA:
        return value
    if name in _BY_NAME and isinstance(value, dict):
        return {key: _walked(one, closes) for key, one in value.items()}
    return _walked(value, closes)


def unanchored(pattern: str) -> str:
    """The whole answer is matched anyway, and the library knows no anchors."""
    pattern = pattern.removeprefix("^")
    num_escapes = len(pattern) - 1 - len(pattern[:-1].rstrip("\\")) if pattern.endswith("$") else 1
    return pattern[:-1] if num_escapes % 2 == 0 else pattern
