"""Closes the objects of a JSON schema to properties that it does not name, where it does not say: clients name all.

Several schemas may describe one object: the parts of an `allOf`, what a `$ref` names, alternatives, and the keywords
next to them. Each is closed to the names that all of them have; by its own names alone it would forbid the others'.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qserve.grammar.references import REMARKS, named_by, with_inner

__all__ = ["with_closed_objects"]

_ALTERNATIVES = ("anyOf", "oneOf")
_MOST_DEEP = 16

Names = frozenset[str]
_NONE: Names = frozenset()


def with_closed_objects(schema: Mapping[str, Any]) -> dict[str, Any]:
    """`schema` with `additionalProperties: false` where it leaves open what other properties an object may have."""
    found: dict[str, Any] = _Closing(schema).closed(dict(schema))
    return found


class _Closing:
    """Of one document."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root

    def closed(self, schema: Any, beside: Names = _NONE, depth: int = 0, *, closes: bool = True) -> Any:
        """`schema`, which describes a value with others that name `beside`; `closes`: none of them opens it."""
        if isinstance(schema, list):
            return [self.closed(one) for one in schema]
        if not isinstance(schema, dict):
            return schema
        schema = self._with_reference_as_part(schema, beside, depth)
        named = _named(schema)
        parts = {name: self._names(schema.get(name), depth) for name in ("allOf", *_ALTERNATIVES)}
        closes = closes and not _opens(schema) and not self._parts_open(schema.get("allOf"), depth)
        found = {}
        for name, value in schema.items():
            if name not in parts:
                found[name] = with_inner(name, value, self.closed)
                continue
            others = _union(names for other, names in parts.items() if other != name) | named | beside
            found[name] = self._parts(value, others, depth, shares=name == "allOf", closes=closes)
        if closes and "properties" in found and isinstance(found["properties"], dict):
            alternatives = [part for name in _ALTERNATIVES for part in _list(schema.get(name))]
            if "additionalProperties" not in found and not self._parts_open(alternatives, depth):
                others = (_union(parts.values()) | beside) - named
                found |= {
                    "properties": {**found["properties"], **dict.fromkeys(sorted(others), True)},
                    "additionalProperties": False,
                }
        return found

    def _parts(self, parts: Any, beside: Names, depth: int, *, shares: bool, closes: bool) -> Any:
        """`shares`: they describe one value together; else each of them alone may."""
        if not isinstance(parts, list):
            return parts
        names = [self._names([part], depth) for part in parts] if shares else []
        return [
            self.closed(part, beside | _union(names[:number] + names[number + 1 :]), depth + 1, closes=closes)
            for number, part in enumerate(parts)
        ]

    def _with_reference_as_part(self, schema: dict[str, Any], beside: Names, depth: int) -> dict[str, Any]:
        """What a `$ref` names in its place, where others describe the same value: it is closed for itself elsewhere."""
        reference = schema.get("$ref")
        goes_along = beside or schema.keys() - REMARKS - {"$ref"}
        if not isinstance(reference, str) or not goes_along or depth > _MOST_DEEP:
            return schema
        target = named_by(reference, self._root)
        if not isinstance(target, dict) or not self._names([target], depth):
            return schema
        others = {name: value for name, value in schema.items() if name not in ("$ref", "allOf")}
        return {"allOf": [target, *_list(schema.get("allOf"))], **others}

    def _names(self, parts: Any, depth: int) -> Names:
        """Names of properties of any of the parts."""
        return _union(self._names_of(part, depth + 1) for part in _list(parts))

    def _names_of(self, schema: Any, depth: int) -> Names:
        if not isinstance(schema, dict) or depth > _MOST_DEEP:
            return _NONE
        return _named(schema) | self._names(self._same_value(schema), depth)

    def _parts_open(self, parts: Any, depth: int) -> bool:
        """Whether one of the parts lets in properties that it does not name."""
        return depth <= _MOST_DEEP and any(self._is_open(part, depth + 1) for part in _list(parts))

    def _is_open(self, schema: Any, depth: int) -> bool:
        if not isinstance(schema, dict):
            return False
        return _opens(schema) or self._parts_open(self._same_value(schema), depth)

    def _same_value(self, schema: Mapping[str, Any]) -> list[Any]:
        """The schemas that describe the same value: its parts, its alternatives, what it refers to."""
        reference = schema.get("$ref")
        referred = [named_by(reference, self._root)] if isinstance(reference, str) else []
        return [part for name in ("allOf", *_ALTERNATIVES) for part in _list(schema.get(name))] + referred


def _opens(schema: Mapping[str, Any]) -> bool:
    """Whether a schema says what other properties there may be."""
    said = [schema.get(name, False) for name in ("additionalProperties", "unevaluatedProperties")]
    return any(one is not False for one in said) or "patternProperties" in schema or "propertyNames" in schema


def _named(schema: Mapping[str, Any]) -> Names:
    properties = schema.get("properties")
    return frozenset(properties) if isinstance(properties, dict) else _NONE


def _union(names: Any) -> Names:
    return _NONE.union(*names)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
