"""Schemas of numbers within random bounds, and texts at and around the bounds; jsonschema is the judge."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import jsonschema
from hypothesis import strategies as st

__all__ = ["BOUNDS", "check_held", "is_valid", "numbers", "text_of"]

Number = int | float
BOUNDS = st.one_of(
    st.integers(-3, 3),
    st.integers(-(10**6), 10**6),
    st.sampled_from([0.0, -0.0, 0.1, 0.5, -0.5, 2.5, 1e3, 1e-7]),
    st.floats(-2, 2),
    st.floats(-1e6, 1e6).map(lambda x: round(x, 3)),
    st.integers(-(2**64), 2**64),
    st.sampled_from([-(2**63), 2**63 - 1, 2**64 - 1, 2**53, 2**53 + 1, 5e-324, 1e-300, -1e-22, 1e22, 1e23, -1e300]),
    st.sampled_from([10**400, -(10**400), 1.7976931348623157e308, -1.7976931348623157e308]),
    st.floats(allow_nan=False, allow_infinity=False),
)


@st.composite
def numbers(draw: st.DrawFn, bounds: st.SearchStrategy[Number] = BOUNDS) -> dict[str, Any]:
    """A schema of numbers with any of the ways to bound them; as a rule some number follows it."""
    schema: dict[str, Any] = {"type": draw(st.sampled_from(["number", "integer"]))}
    low, high = sorted([draw(bounds), draw(bounds)])
    for closed, exclusive, bound in (("minimum", "exclusiveMinimum", low), ("maximum", "exclusiveMaximum", high)):
        way = draw(st.sampled_from(["none", "closed", "open", "both", "draft 4"]))
        schema |= {
            "none": {},
            "closed": {closed: bound},
            "open": {exclusive: bound},
            "both": {closed: bound, exclusive: draw(st.sampled_from([low, high]))},
            "draft 4": {closed: bound, exclusive: draw(st.booleans())},
        }[way]
    return schema


def is_valid(schema: dict[str, Any], value: Any) -> bool:
    """Draft 4's `exclusiveMinimum: true` is said in the words of today."""
    said = dict(schema)
    for closed, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if isinstance(beyond := said.get(exclusive), bool):
            del said[exclusive]
            if beyond:
                said[exclusive] = said.pop(closed)
    return bool(jsonschema.Draft202012Validator(said).is_valid(value))


def text_of(value: Number) -> str:
    """Without an exponent, and without a point where there is nothing behind it."""
    return str(int(value)) if value == int(value) else f"{Decimal(repr(value)):f}"


def _texts_around(value: Number) -> list[str]:
    near = [math.nextafter(value, way) for way in (-math.inf, math.inf)] if abs(value) < 1e300 else []
    steps = [value + step for step in (1, -1, 0.5, -0.5, 1e-9, -1e-9) if abs(value) < 2**80]
    texts = [text_of(one) for one in [value, *near, *steps, -value, 0]]
    return [*texts, *(f"{text}{'' if '.' in text else '.'}{more}" for text in texts for more in ("0", "0" * 30 + "1"))]


def _near(bound: Number, num_places: int) -> float:
    return max(1e-9 * abs(bound), 1e-9, 2 * 10.0**-num_places)


def check_held(
    schema: dict[str, Any], accepts: Callable[[str], bool], *, num_places: int = 400, only_doubles: bool = False
) -> None:
    """What is let through is valid, closed bounds are reached, and something near open ones.

    `num_places`: behind the point, which what is reached may need. `only_doubles`: bounds of a `number` that are none
    (2^53 + 1) need not be reached.
    """
    bounds = [value for name, value in schema.items() if name != "type" and not isinstance(value, bool)]
    for text in {text for bound in [*bounds, 0] for text in _texts_around(bound)}:
        assert not accepts(text) or is_valid(schema, json.loads(text)), text
    for bound in bounds:
        is_read = not only_doubles or schema["type"] == "integer" or (abs(bound) < 2**63 and float(bound) == bound)
        if is_read and is_valid(schema, bound) and len(text_of(bound).partition(".")[2]) <= num_places:
            assert accepts(text_of(bound)), bound
        whole = [bound + step for step in (1, -1) if isinstance(bound, int)]
        inside = [one for one in whole if is_valid(schema, one)]
        assert schema["type"] == "number" or all(accepts(str(one)) for one in inside)
        if schema["type"] == "number" and abs(bound) < 2**50:
            steps = [sign * 10.0**-place for sign in (1, -1) for place in range(3, 40)]
            values = [round(bound + step, num_places) for step in steps]
            near = [one for one in values if is_valid(schema, one) and abs(one - bound) <= _near(bound, num_places)]
            assert not near or any(accepts(text_of(one)) for one in near), bound
