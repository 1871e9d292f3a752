"""The names that a request may hold, by the place of the object that they stand in. Lists are no level of their own."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["FieldNames", "Place", "names_of"]

Place = tuple[str, ...]
# No request is nested deeper, but for schemas that hold themselves.
_MOST_LEVELS = 6


@dataclass
class FieldNames:
    """`at`: the names of the object in each place; `values`: where a word is one of the values of a field."""

    at: dict[Place, set[str]] = field(default_factory=lambda: defaultdict(set))
    values: dict[str, Place] = field(default_factory=dict)

    def places_of(self, name: str) -> list[Place]:
        """The objects that have a field of this name."""
        return [place for place, names in self.at.items() if name in names]


def names_of(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> FieldNames:
    """Of a JSON schema, whose `$ref` end in names of `definitions`."""
    found = FieldNames()
    _add(found, schema, definitions, (), ())
    return found


def _add(found: FieldNames, schema: Any, definitions: Mapping[str, Any], place: Place, seen: tuple[str, ...]) -> None:
    if not isinstance(schema, Mapping) or len(place) > _MOST_LEVELS:
        return
    if "$ref" in schema:
        name = str(schema["$ref"]).rpartition("/")[2]
        if name not in seen:
            _add(found, definitions.get(name, {}), definitions, place, (*seen, name))
        return
    for kind in ("anyOf", "oneOf", "allOf"):
        for one in schema.get(kind, ()):
            _add(found, one, definitions, place, seen)
    _add(found, schema.get("items"), definitions, place, seen)
    for value in (*schema.get("enum", ()), schema.get("const")):
        if isinstance(value, str) and place:
            found.values.setdefault(value, place)
    for name, inner in (schema.get("properties") or {}).items():
        if isinstance(inner, Mapping):
            found.at[place].add(name)
            _add(found, inner, definitions, (*place, name), seen)
