"""What was probably meant by a field that a request does not have.

A wrong name belongs beside its place, a level deeper or higher, among the values of a field, or in another request.
Names stand by the place of the object that holds them; lists are no level of their own.
"""

from __future__ import annotations

import difflib
import itertools
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeVar

from pydantic import BaseModel

__all__ = ["MIXED_UP", "FieldNames", "Place", "hint_for", "hint_of", "mixed_up_on", "names_by_schema", "names_of"]

Place = tuple[str, ...]
# No request is nested deeper, but for schemas that hold themselves.
_MOST_LEVELS = 6
_LIKE = 0.75
# Levels up and down from the place of the name to the one where it belongs.
_FARTHEST = 3
_MOST_CHARS = 100
# A name that more objects have says nothing about which of them was meant.
_MOST_PLACES = 2
# Fields to which APIs give different names, each by its place.
_SAME = (
    ("max_completion_tokens", "max_tokens", "max_output_tokens", "max_new_tokens"),
    ("messages", "input", "prompt"),
    ("stop", "stop_sequences"),
    ("system", "instructions"),
    ("response_format", "text.format", "output_config.format"),
    ("reasoning_effort", "reasoning.effort", "output_config.effort"),
)
Schema = TypeVar("Schema", bound=BaseModel)

MIXED_UP: dict[str, type[BaseModel]] = {}
"""Routes that clients mix up, each with its schema: the fields of one are sent to another."""


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


def hint_for(path: Sequence[str | int], names: FieldNames, others: Mapping[str, FieldNames] | None = None) -> str:
    """`; did you mean …?` for the unknown field at `path`, or nothing.

    `others`: the names of other routes' requests, where a name at the top may belong.
    """
    *before, last = path
    name = str(last)
    if len(name) > _MOST_CHARS:
        return ""
    here = tuple(part for part in before if isinstance(part, str) and not part.isdigit())
    if near := difflib.get_close_matches(name, sorted(names.at.get(here, ())), n=1, cutoff=_LIKE):
        return f"; did you mean '{_dotted((*before, near[0]))}'?"
    if (same := _same(name, names)) is not None and not here:
        return f"; did you mean '{same}'?"
    if places := _nearest(here, names.places_of(name)):
        return f"; did you mean {' or '.join(repr(_placed(before, here, (*place, name))) for place in places)}?"
    if (value_of := names.values.get(name)) is not None:
        return f"; did you mean '{_placed(before, here, value_of)}', of which it is a value?"
    routes = [route for route, other in (others or {}).items() if not here and name in other.at[()]]
    told = " and ".join(part for part in (", ".join(routes[:-1]), *routes[-1:]) if part)
    return f"; it is a field of {told}" if routes else ""


def _same(name: str, names: FieldNames) -> str | None:
    """What this request calls it."""
    for group in (group for group in _SAME if name in group):
        for one in group:
            *place, last = one.split(".")
            if one != name and last in names.at.get(tuple(place), ()):
                return one
    return None


def _nearest(here: Place, places: Sequence[Place]) -> list[Place]:
    """Those that are fewest levels away, if they are no more than a few."""
    by_distance: dict[int, list[Place]] = {}
    for place in places:
        shared = len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], zip(here, place, strict=False))))
        by_distance.setdefault(len(here) + len(place) - 2 * shared, []).append(place)
    nearest = min(by_distance, default=_FARTHEST + 1)
    found = by_distance.get(nearest, [])
    return found if nearest <= _FARTHEST and len(found) <= _MOST_PLACES else []


def _placed(before: Sequence[str | int], here: Place, place: Place) -> str:
    """A place in the words of the request: with the numbers of the lists that both stand in."""
    shared, written = 0, list[str | int]()
    for part in before:
        is_number = not isinstance(part, str) or part.isdigit()
        if not is_number:
            if shared >= len(place) or part != place[shared]:
                break
            shared += 1
        written.append(part)
    return _dotted((*written, *place[shared:]))


def _dotted(path: Sequence[str | int]) -> str:
    return ".".join(map(str, path))


def mixed_up_on(route: str) -> Callable[[type[Schema]], type[Schema]]:
    """Enters the schema of a route into `MIXED_UP`."""

    def enter(schema: type[Schema]) -> type[Schema]:
        MIXED_UP[route] = schema
        return schema

    return enter


def hint_of(schema: type[BaseModel], path: tuple[str | int, ...]) -> str:
    """What was probably meant by the field at `path`, which a request of this schema does not have."""
    others = {route: names_by_schema(other) for route, other in MIXED_UP.items()}
    return hint_for(path, names_by_schema(schema), others)


@lru_cache(maxsize=64)
def names_by_schema(schema: type[BaseModel]) -> FieldNames:
    """The names of one request. Takes some ten milliseconds, once for each schema."""
    document: Mapping[str, Any] = schema.model_json_schema()
    return names_of(document, document.get("$defs", {}))
