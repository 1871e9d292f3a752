"""A JSON schema as rules of Lark, where it has numbers that llguidance does not carry.

The library takes bounds in JSON schemas alone, and a JSON schema has no place for a pattern of a number. So what holds
such a number (objects, lists, alternatives) is written as rules here, and all else in it stays a schema. Where a
keyword has no rule here, bounds are drawn in to the next numbers that are carried.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from qserve.grammar.number_bounds import (
    BOUNDS,
    EXACT,
    Number,
    carried,
    closed_bounds,
    is_carried,
    is_infinite,
    is_number,
)
from qserve.grammar.number_patterns import number_pattern, whole_pattern
from qserve.grammar.references import REMARKS, named_by, within

__all__ = ["NumberRules", "UncarriedNumber", "with_carried_numbers"]

_TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
_OF_TYPE: Mapping[str, frozenset[str]] = {
    "integer": frozenset(BOUNDS),
    "number": frozenset(BOUNDS),
    "array": frozenset({"items", "minItems", "maxItems"}),
    "object": frozenset({"properties", "required", "additionalProperties"}),
}
_VALUES = ("const", "enum")

T = TypeVar("T")


class UncarriedNumber(ValueError):
    """A number that the library does not read as it is; no rule can be written for it, and no bound be tightened."""

    def __init__(self, number: Any) -> None:
        super().__init__(
            f"the number {json.dumps(number)[:60]} can't be enforced here: a number beyond 2^53, or a listed number "
            "of more than 15 digits, must have no other keywords next to it, nor next to the 'properties', 'items' or "
            "'anyOf' that contain it. Please leave those keywords out, or check the number in the answer"
        )


class _NoRule(Exception):
    """A keyword has none here, or is malformed: the schema stays one, and the library says what is wrong."""


class NumberRules:
    """Of one document; `name` begins the names of its rules, `as_schema` writes a schema of the library's."""

    def __init__(self, document: Mapping[str, Any], name: str, as_schema: Callable[[Any], str]) -> None:
        self._document = document
        self._name = name
        self._as_schema = as_schema
        self._rules: list[str] = []
        self._named: dict[str, str] = {}

    def rules(self) -> list[str] | None:
        """The rule of the document, by the name, and those that it needs; None where it is to stay a schema."""
        if not self._is_long(self._document):
            return None
        try:
            return [f"{self._name}: {self._value(self._document)}", *self._rules]
        except _NoRule:
            return None

    def _is_long(self, schema: Any, seen: frozenset[str] = frozenset()) -> bool:
        """Whether some number in it is not carried; `seen`: references that led here."""
        if not isinstance(schema, dict):
            return isinstance(schema, list) and any(self._is_long(one, seen) for one in schema)
        reference = schema.get("$ref")
        if isinstance(reference, str) and reference not in seen:
            seen |= {reference}
            if self._is_long(named_by(reference, self._document), seen):
                return True
        if any(map(_has_long, _values_of(schema))) or not _has_carried_bounds(schema):
            return True
        return any(
            self._is_long([*value.values()] if name == "properties" and isinstance(value, dict) else value, seen)
            for name, value in schema.items()
            if name not in (*_VALUES, *REMARKS)
        )

    def _value(self, schema: Any) -> str:
        """What stands for a value of `schema` in a rule."""
        if not self._is_long(schema):
            return self._rule(self._as_schema(within(schema, self._document)))
        if not isinstance(schema, dict):
            raise _NoRule
        said = schema.keys() - REMARKS - {"format"}
        if said == {"$ref"}:
            return self._reference(schema["$ref"])
        if said & set(_VALUES):
            return self._listed(schema, said)
        if said in ({"allOf"}, {"anyOf"}):
            parts = _checked(schema[said.pop()], list)
            if "allOf" in schema and len(parts) != 1:
                raise _NoRule
            return self._either([self._value(one) for one in parts])
        return self._either([self._of_type(one, schema) for one in _types_of(schema)])

    def _of_type(self, kind: str, schema: dict[str, Any]) -> str:
        said = {name: value for name, value in schema.items() if name not in REMARKS}
        others = frozenset[str]().union(*_OF_TYPE.values()) if said.get("type") != kind else frozenset[str]()
        own = {name: value for name, value in said.items() if name in _OF_TYPE.get(kind, ())}
        if said.keys() - own.keys() - others - {"type", "format"}:
            raise _NoRule
        if kind in ("integer", "number"):
            return self._number(own, is_whole=kind == "integer")
        if not self._is_long(own):
            return self._rule(self._as_schema(within({"type": kind, **own}, self._document)))
        return self._array(own) if kind == "array" else self._object(own)

    def _number(self, schema: dict[str, Any], *, is_whole: bool) -> str:
        bounds: Any = closed_bounds(schema, is_whole=is_whole)
        if any(bound is not None and is_infinite(bound) for bound in bounds):
            raise _NoRule
        pattern = whole_pattern(*bounds) if is_whole else number_pattern(*bounds)
        if pattern is None:
            raise _NoRule  # the library says so
        return self._rule(f"/{pattern}/")

    def _listed(self, schema: dict[str, Any], said: set[str]) -> str:
        if said - {*_VALUES, "type"} or said >= set(_VALUES):
            raise _NoRule
        types = _types_of(schema)
        values = [one for one in _values_of(schema) if _is_of(one, types)]
        return self._either([json.dumps(json.dumps(one, ensure_ascii=False), ensure_ascii=False) for one in values])

    def _array(self, own: dict[str, Any]) -> str:
        item = self._value(own["items"])
        least, most = _count(own.get("minItems", 0)), _count(own["maxItems"]) if "maxItems" in own else None
        if most == 0:
            return self._rule('"[]"')
        more = f'{item} (", " {item}){{{max(0, least - 1)},{"" if most is None else most - 1}}}'
        return self._rule(f'"[" {more} "]"' if least else f'"[" ({more})? "]"')

    def _object(self, own: dict[str, Any]) -> str:
        properties, others = _checked(own.get("properties", {}), dict), own.get("additionalProperties")
        required = _checked(own.get("required", []), list)
        if properties and others is False and all(name in tuple(properties) for name in required):
            return self._rule(f'"{{" {self._properties(list(properties.items()), required)} "}}"')
        if properties or required or not isinstance(others, dict):
            raise _NoRule
        pair = f'{self._value({"type": "string"})} ": " {self._value(others)}'
        return self._rule(f'"{{" ({pair} (", " {pair})*)? "}}"')

    def _properties(self, properties: list[tuple[str, Any]], required: list[str]) -> str:
        """In their order: for each a rule of what follows it where it stands first, and one where it does not."""
        first, later = '""', '""'
        for name, schema in reversed(properties):
            pair = (
                f"{json.dumps(json.dumps(name, ensure_ascii=False) + ': ', ensure_ascii=False)} {self._value(schema)}"
            )
            left_out = ["", ""] if name in required else [f" | {first}", f" | {later}"]
            first = self._rule(f"{pair} {later}{left_out[0]}")
            later = self._rule(f'", " {pair} {later}{left_out[1]}')
        return first

    def _reference(self, reference: str) -> str:
        if reference not in self._named:
            name = self._named[reference] = f"{self._name}_{len(self._rules)}"
            self._rules.append("")
            at = len(self._rules) - 1
            self._rules[at] = f"{name}: {self._value(named_by(reference, self._document))}"
        return self._named[reference]

    def _either(self, ways: list[str]) -> str:
        if not ways:
            raise _NoRule
        return ways[0] if len(ways) == 1 else f"({' | '.join(ways)})"

    def _rule(self, body: str) -> str:
        name = f"{self._name}_{len(self._rules)}"
        self._rules.append(f"{name}: {body}")
        return name


def with_carried_numbers(schema: dict[str, Any]) -> dict[str, Any]:
    """One schema with bounds that are carried. Raises UncarriedNumber."""
    for value in _values_of(schema):
        if _has_long(value):
            raise UncarriedNumber(value)
    if not any(is_number(schema.get(name)) for name in BOUNDS):
        return schema
    least, most = _closed(schema)
    if far := [one for one in (least, most) if one is not None and abs(one) > EXACT]:
        raise UncarriedNumber(far[0])
    found = {name: value for name, value in schema.items() if name not in BOUNDS}
    given = {"minimum": _narrowed(least, up=True), "maximum": _narrowed(most, up=False)}
    return {**found, **{name: value for name, value in given.items() if value is not None}}


def _narrowed(bound: Number | None, *, up: bool) -> Number | None:
    return None if bound is None else carried(bound, up=up)


def _has_carried_bounds(schema: Mapping[str, Any]) -> bool:
    """Whether the library loses nothing of the bounds: near others it takes 0.50 and not 0.5, or ends digits short."""
    return all(one is None or (is_carried(one) and one == int(one)) for one in _closed(schema))


def _closed(schema: Mapping[str, Any]) -> tuple[Number | None, Number | None]:
    return closed_bounds(schema, is_whole=schema.get("type") == "integer")


def _values_of(schema: Mapping[str, Any]) -> list[Any]:
    listed = schema.get("enum")
    return [*(listed if isinstance(listed, list) else ()), *([schema["const"]] if "const" in schema else ())]


def _has_long(value: Any) -> bool:
    """Whether some number in a value is not carried."""
    if isinstance(value, list | dict):
        return any(map(_has_long, value.values() if isinstance(value, dict) else value))
    return is_number(value) and not is_carried(value)


def _types_of(schema: Mapping[str, Any]) -> list[str]:
    """Those of its `type`; without one, all."""
    types = schema.get("type", list(_TYPES))
    types = [types] if isinstance(types, str) else _checked(types, list)
    if not all(one in _TYPES for one in types):
        raise _NoRule
    return types


def _count(value: Any) -> int:
    if not is_number(value) or not float(value).is_integer():
        raise _NoRule
    return int(value)


def _checked(value: Any, kind: type[T]) -> T:
    if not isinstance(value, kind):
        raise _NoRule
    return value


def _is_of(value: Any, types: Collection[str]) -> bool:
    """Whether a value is of one of the types."""
    if is_number(value):
        return "number" in types or ("integer" in types and (isinstance(value, int) or value.is_integer()))
    kinds = {str: "string", bool: "boolean", list: "array", dict: "object"}
    return kinds.get(type(value), "null") in types
