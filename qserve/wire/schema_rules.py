"""Rules between the fields of a request as JSON Schema, for /openapi.json: what our validators ask beyond types.

Null means "not given" everywhere, so "given" is told by the types that a field may have otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["absent", "given", "needs", "one_of_these", "together"]

Kinds = str | list[str]


def given(**kinds: Kinds) -> dict[str, Any]:
    """All of these are there, each of one of its types."""
    return {"required": list(kinds), "properties": {name: {"type": kind} for name, kind in kinds.items()}}


def absent(*names: str) -> dict[str, Any]:
    """None of these is there."""
    return {"properties": {name: {"type": "null"} for name in names}}


def together(*rules: Mapping[str, Any]) -> dict[str, Any]:
    """All of the rules, none of which speaks of another's fields."""
    required = [name for rule in rules for name in rule.get("required", ())]
    properties = {name: what for rule in rules for name, what in rule.get("properties", {}).items()}
    return {"properties": properties, **({"required": required} if required else {})}


def one_of_these(**kinds: Kinds) -> dict[str, Any]:
    """Exactly one is there."""
    return {
        "oneOf": [
            together(given(**{name: kind}), absent(*(other for other in kinds if other != name)))
            for name, kind in kinds.items()
        ]
    }


def needs(name: str, kind: str, other: str, value: Any) -> dict[str, Any]:
    """Where `name` is given (is no null, or no `kind` at all), `other` has this value."""
    not_given = {"properties": {name: {"not": {"type": kind}}}}
    return {"anyOf": [not_given, {"required": [other], "properties": {other: {"const": value}}}]}
