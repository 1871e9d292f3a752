"""The place that a wrong name belongs to: beside it, a level deeper or higher, as a value, or in another request."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Mapping, Sequence

from qserve.wire.hints.names import FieldNames, Place

__all__ = ["hint_for"]

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
