"""Rewrites a client's JSON schema so that xgrammar, vLLM's backend, enforces it fully, or refuses it.

xgrammar leaves out in silence what it does not hold (0.2.8: `uniqueItems`, whatever stands beside a `$ref`, …), and an
answer is invalid then that was promised to be valid. So a schema is brought into the forms that it is known to hold,
or refused with the name of the keyword. tests/tiny/engine/test_xgrammar_schema.py holds both to the library itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qserve.engines.vllm.wire.unenforceable import UnenforceableSchema, check_alone
from qserve.engines.vllm.wire.xgrammar.numbers import check_values, number_for_xgrammar
from qserve.engines.vllm.wire.xgrammar.strings import check_pattern, string_for_xgrammar

__all__ = ["schema_for_xgrammar"]

_OF_NUMBERS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})
_KEYWORDS: Mapping[str, frozenset[str]] = {
    "string": frozenset({"minLength", "maxLength", "pattern", "format"}),
    "integer": _OF_NUMBERS,
    "number": _OF_NUMBERS,
    "array": frozenset({"items", "prefixItems", "minItems", "maxItems", "additionalItems", "unevaluatedItems"}),
    "object": frozenset(
        {
            "properties",
            "required",
            "additionalProperties",
            "unevaluatedProperties",
            "minProperties",
            "maxProperties",
            "patternProperties",
            "propertyNames",
        }
    ),
    "boolean": frozenset(),
    "null": frozenset(),
}
# And the values with which they say nothing.
_NOT_HELD: Mapping[str, tuple[Any, ...]] = {
    "not": (),
    "if": (),
    "then": (),
    "else": (),
    "$dynamicRef": (),
    "multipleOf": (),
    "uniqueItems": (False,),
    "contains": (),
    "minContains": (),
    "maxContains": (),
    "dependentRequired": ({},),
    "dependentSchemas": ({},),
    "dependencies": ({},),
}
_CONSTRAINTS = frozenset().union(
    *_KEYWORDS.values(), _NOT_HELD, ("type", "enum", "const", "$ref", "anyOf", "oneOf", "allOf")
)
_MOST_APART, _MOST_REFERENCES = 64, 16
_TYPE_OF_VALUE = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}


def schema_for_xgrammar(schema: Mapping[str, Any]) -> dict[str, Any]:
    """An equivalent schema that xgrammar enforces. Raises UnenforceableSchema, or RecursionError if it is too deep."""
    held: dict[str, Any] = _Rewriting(schema).held(dict(schema), "")
    return held


class _Rewriting:
    """Of one whole schema; `where` is a path in it, for people."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root

    def held(self, schema: Any, where: str) -> Any:
        """One schema in it."""
        if schema is True:
            return {}
        if not isinstance(schema, dict):
            return schema  # false, or no schema: the engine says so
        given = {name: value for name, value in schema.items() if name in _CONSTRAINTS}
        found = {name: value for name, value in schema.items() if name not in _CONSTRAINTS}
        for name in ("$defs", "definitions"):
            if isinstance(named := found.get(name), dict):
                found[name] = {key: self.held(one, f"{where}{key}.") for key, one in named.items()}
        for name in sorted(given.keys() & _NOT_HELD.keys()):
            if given.pop(name) not in _NOT_HELD[name]:
                raise UnenforceableSchema(name, where)
        return {**found, **self._binding(given, where)}

    def _binding(self, given: dict[str, Any], where: str) -> dict[str, Any]:
        """The keywords that bind, of one schema."""
        if "$ref" in given:
            check_alone("$ref", given, where)
            if given["$ref"] != "#" and not str(given["$ref"]).startswith("#/"):
                raise UnenforceableSchema("$ref", where, " to another document, or to an anchor")
            return given
        if "const" in given or "enum" in given:
            return _values(given, where)
        if "oneOf" in given and "anyOf" not in given:
            given["anyOf"] = self._apart(given.pop("oneOf"), where)
        if "allOf" in given:
            return self._all_of(given, where)
        if "anyOf" in given:
            return self._any_of(given, where)
        return self._typed(given, where)

    def _any_of(self, given: dict[str, Any], where: str) -> dict[str, Any]:
        """Beside a `type` that all of its parts have anyway."""
        parts = self._schemas(given["anyOf"], f"{where}anyOf")
        types = _named(given.pop("type", None))
        if not all(self._types_of(part) <= types for part in parts):
            raise UnenforceableSchema("anyOf", where, " next to another 'type'")
        check_alone("anyOf", given, where)
        return {"anyOf": parts}

    def _all_of(self, given: dict[str, Any], where: str) -> dict[str, Any]:
        parts = self._schemas(given["allOf"], f"{where}allOf")
        if len(parts) != 1 or not isinstance(parts[0], dict):
            raise UnenforceableSchema("allOf", where, " of several schemas")
        check_alone("allOf", given, where)
        return dict(parts[0])

    def _apart(self, of_one: Any, where: str) -> Any:
        """The parts of a `oneOf` of which no value can be two: xgrammar takes them for an `anyOf`."""
        parts = [self._resolved(part) for part in of_one] if isinstance(of_one, list) else []
        types = [(self._types_of(part), self._tags(part)) for part in parts]
        pairs = ((one, other) for number, one in enumerate(types) for other in types[:number])
        if len(parts) > _MOST_APART or not all(_are_apart(*one, *other) for one, other in pairs):
            raise UnenforceableSchema("oneOf", where, " of schemas that one value could follow at once")
        return of_one

    def _typed(self, given: dict[str, Any], where: str) -> dict[str, Any]:
        """Keywords of types: a schema for each type that the value may be."""
        types = given.get("type")
        if types is None:  # a keyword binds values of its type alone; the answer is one of those
            types = [kind for kind, keywords in _KEYWORDS.items() if keywords & given.keys() and kind != "integer"]
        if isinstance(types, str):
            types = [types]
        if not isinstance(types, list) or not all(one in tuple(_KEYWORDS) for one in types):
            return given  # the engine says what is wrong
        parts = [self._of_type(one, given, where) for one in types]
        return parts[0] if len(parts) == 1 else {"anyOf": parts} if parts else {}

    def _of_type(self, kind: str, given: dict[str, Any], where: str) -> dict[str, Any]:
        own = {name: value for name, value in given.items() if name in _KEYWORDS[kind]}
        if kind == "string":
            own = string_for_xgrammar(own, where)
        elif kind == "array":
            own = self._array(own, where)
        elif kind == "object":
            own = self._object(own, where)
        elif kind in ("integer", "number"):
            own = number_for_xgrammar(own, where, is_whole=kind == "integer")
        return {"type": kind, **own}

    def _array(self, own: dict[str, Any], where: str) -> dict[str, Any]:
        beyond = own.pop("additionalItems", None)
        if isinstance(own.get("items"), list):  # of draft 7
            own["prefixItems"] = own.pop("items")
            if beyond is not None:
                own["items"] = beyond
        if own.pop("unevaluatedItems", None) is False:
            own.setdefault("items", False)
        if "prefixItems" in own:
            own["prefixItems"] = self._schemas(own["prefixItems"], f"{where}prefixItems")
        else:
            own.setdefault("items", {})  # without them it takes an array for an empty one
        if "items" in own:
            own["items"] = self.held(own["items"], f"{where}items.")
        return own

    def _object(self, own: dict[str, Any], where: str) -> dict[str, Any]:
        """Closed where the schema names properties and does not say: clients name those that they want."""
        for keyword in ("patternProperties", "propertyNames"):
            if keyword in own:
                return self._by_name(keyword, own, where)
        properties = own.get("properties", {})
        is_closed = own.pop("unevaluatedProperties", None) is False or "properties" in own
        beyond = own.setdefault("additionalProperties", not is_closed)
        if isinstance(beyond, dict):
            beyond = own["additionalProperties"] = self.held(beyond, f"{where}additionalProperties.")
        if not isinstance(properties, dict):
            return own  # the engine says what is wrong
        held = {name: self.held(one, f"{where}{name}.") for name, one in properties.items()}
        for name in own.get("required", ()):  # one that is not among the properties would be left out
            if name not in held and beyond is False:
                raise UnenforceableSchema("required", where, f" of {name!r}, which is none of the 'properties'")
            held.setdefault(name, {} if beyond is True else beyond)
        return {**own, "properties": held} if held or "properties" in own else own

    def _by_name(self, keyword: str, own: dict[str, Any], where: str) -> dict[str, Any]:
        """Properties of any names that fit a pattern."""
        if own.get("additionalProperties") is False and keyword == "patternProperties":
            own.pop("additionalProperties")
        if own.pop("unevaluatedProperties", True) is not True or not isinstance(own[keyword], dict):
            raise UnenforceableSchema(keyword, where, " next to 'unevaluatedProperties'")
        check_alone(keyword, own, where)
        if keyword == "propertyNames":
            return {keyword: self.held({"type": "string", **own[keyword]}, f"{where}{keyword}.")}
        if len(own[keyword]) != 1:
            raise UnenforceableSchema(keyword, where, " of several patterns")
        held = {name: self.held(one, f"{where}{name}.") for name, one in own[keyword].items()}
        check_pattern(next(iter(held)), where)
        return {keyword: held, "additionalProperties": False}

    def _schemas(self, parts: Any, where: str) -> Any:
        if not isinstance(parts, list):
            return parts
        return [self.held(part, f"{where}.{number}.") for number, part in enumerate(parts)]

    def _resolved(self, schema: Any) -> dict[str, Any]:
        """What a `$ref` to a definition stands for; no keywords where that can't be told."""
        found: Any = schema
        for _ in range(_MOST_REFERENCES):
            if not isinstance(found, dict) or not isinstance(found.get("$ref"), str):
                return found if isinstance(found, dict) else {}
            where, _, name = found["$ref"].rpartition("/")
            named = self._root.get(where.removeprefix("#/"))
            found = named.get(name) if isinstance(named, dict) else None
        return {}

    def _types_of(self, schema: Any) -> frozenset[str]:
        """What a value of it can be."""
        schema = self._resolved(schema)
        if "type" in schema:
            return _named(schema["type"])
        for name in ("anyOf", "oneOf"):
            if isinstance(parts := schema.get(name), list):
                return frozenset[str]().union(*map(self._types_of, parts))
        values = _few(schema)
        return _named(None) if values is None else frozenset(map(_type_of, values))

    def _tags(self, schema: dict[str, Any]) -> dict[str, list[Any]]:
        """Properties that are always there, with the few values that they may have."""
        properties, required = schema.get("properties"), schema.get("required")
        if not isinstance(properties, dict) or not isinstance(required, list):
            return {}
        few = {name: _few(self._resolved(properties.get(name))) for name in required if isinstance(name, str)}
        return {name: values for name, values in few.items() if values is not None}


def _values(given: dict[str, Any], where: str) -> dict[str, Any]:
    """`enum` and `const`, with what `type` leaves of them."""
    keyword = "const" if "const" in given else "enum"
    types = _named(given.pop("type", None))
    check_alone(keyword, given, where)
    values = [given["const"]] if keyword == "const" else given["enum"]
    if not isinstance(values, list):
        return given
    left = [value for value in values if _type_of(value) in types]
    check_values(left, keyword, where)
    if not left:
        raise UnenforceableSchema(keyword, where, " has no value of its 'type'")
    return {"const": left[0]} if keyword == "const" else {"enum": left}


def _are_apart(
    types: frozenset[str], tags: Mapping[str, list[Any]], others: frozenset[str], other_tags: Mapping[str, list[Any]]
) -> bool:
    """Whether no value can be of both schemas."""
    shared = tags.keys() & other_tags.keys()
    return not types & others or any(not any(one in other_tags[name] for one in tags[name]) for name in shared)


def _few(schema: Mapping[str, Any]) -> list[Any] | None:
    """The values that a schema lists."""
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    return values if isinstance(values, list) else None


def _named(types: Any) -> frozenset[str]:
    """Types of a `type`; an integer is a number, too. None: all."""
    if types is None:
        return frozenset(_KEYWORDS)
    given = {types} if isinstance(types, str) else {one for one in types if isinstance(one, str)}
    return frozenset(given | ({"integer"} if "number" in given else set()))


def _type_of(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        return "integer"
    return _TYPE_OF_VALUE.get(type(value), "null")
