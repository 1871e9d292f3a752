"""Rewrites a client's JSON schema so that llguidance enforces it fully.

Blanks are those of `json.dumps`, which is what models learned: where any are allowed, small ones write them until their
limit. Objects are closed where the schema does not say (`closed_objects`), and bounds of numbers hold to the last digit
(`numbers`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from qserve.grammar.closed_objects import with_closed_objects
from qserve.grammar.number_rules import NumberRules, UncarriedNumber, with_carried_numbers
from qserve.grammar.references import with_inner

__all__ = ["UncarriedNumber", "as_rules", "embedded", "prepared", "unanchored"]

_COMPACT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}

# What llguidance checks; JSON Schema takes other formats for remarks, and so do validators.
_FORMATS = frozenset(
    {"date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "unknown", "uri", "uuid"}
)


def prepared(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema in words that the library holds. Raises UncarriedNumber."""
    return _held(with_closed_objects(schema))


def embedded(rule: str, schema: Mapping[str, Any]) -> list[str]:
    """The same as rules of a Lark grammar, of which the first is called `rule`. Raises UncarriedNumber."""
    return as_rules(rule, schema) or [f"{rule}: {_as_part(with_closed_objects(schema))}"]


def as_rules(rule: str, schema: Mapping[str, Any]) -> list[str] | None:
    """These where the schema has numbers that the library takes in no schema; None where it may stay one."""
    return NumberRules(with_closed_objects(schema), rule, _as_part).rules()


def _as_part(closed: Mapping[str, Any]) -> str:
    return "%json " + json.dumps(_held(closed))


def _held(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {**_walked(schema), "x-guidance": _COMPACT}


def _walked(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_walked(one) for one in schema]
    if not isinstance(schema, Mapping):
        return schema
    found = with_carried_numbers({name: with_inner(name, value, _walked) for name, value in schema.items()})
    if isinstance(found.get("format"), str) and found["format"] not in _FORMATS:
        del found["format"]
    return found


def unanchored(pattern: str) -> str:
    """The whole answer is matched anyway, and the library knows no anchors."""
    pattern = pattern.removeprefix("^")
    num_escapes = len(pattern) - 1 - len(pattern[:-1].rstrip("\\")) if pattern.endswith("$") else 1
    return pattern[:-1] if num_escapes % 2 == 0 else pattern
