"""JSON schemas that no finite value follows: each of its objects has to hold another one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qserve.grammar.references import named_by

__all__ = ["NO_END", "has_an_end"]

NO_END = "no answer can follow this structure: it has no end"

# Of one document. A schema with many references that all lead back may take more: it is left to the engine.
_MOST_LOOKS = 20_000


def has_an_end(schema: Mapping[str, Any]) -> bool:
    """Whether some value of `schema` ends, by what its keywords say alone; True for one that is too deep to tell."""
    try:
        return _Looking(schema).ends(schema, frozenset())
    except RecursionError:
        return True


class _Looking:
    """At one document."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._ended: set[str] = set()
        self._num_looks = 0

    def ends(self, schema: Any, within: frozenset[str]) -> bool:
        """`within`: the references that led here; one that leads back needs a value of itself."""
        self._num_looks += 1
        if not isinstance(schema, Mapping) or "enum" in schema or "const" in schema or self._num_looks > _MOST_LOOKS:
            return True
        parts = [_list(schema, name) for name in ("anyOf", "oneOf")]
        return (
            self._reference_ends(schema.get("$ref"), within)
            and all(not given or any(self.ends(one, within) for one in given) for given in parts)
            and all(self.ends(one, within) for one in [*_list(schema, "allOf"), *_needed(schema)])
        )

    def _reference_ends(self, reference: Any, within: frozenset[str]) -> bool:
        if not isinstance(reference, str) or reference in self._ended:
            return True
        if reference in within or not self.ends(named_by(reference, self._root), within | {reference}):
            return False
        self._ended.add(reference)
        return True


def _list(schema: Mapping[str, Any], name: str) -> list[Any]:
    return given if isinstance(given := schema.get(name), list) else []


def _needed(schema: Mapping[str, Any]) -> list[Any]:
    """Schemas that every value holds values of, where objects or lists are all that it may be."""
    if schema.get("type") == "object" and isinstance(properties := schema.get("properties"), Mapping):
        return [properties.get(name) for name in _list(schema, "required") if isinstance(name, str)]
    least = schema.get("minItems", 0)
    if schema.get("type") == "array" and isinstance(least, int) and least > 0:
        given = _list(schema, "prefixItems")[:least]
        return given if len(given) == least else [*given, schema.get("items")]
    return []
