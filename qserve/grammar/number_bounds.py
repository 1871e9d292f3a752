"""Bounds of numbers as closed ones, and those that llguidance holds to the last digit.

Readers of JSON take a text for the nearest double: one just above an open 0.1 is 0.1 to them. So an open bound becomes
the next double, and of whole numbers the next one.

llguidance 1.7 (vLLM 0.32 takes no newer one) lets an open bound through where both bounds have the same whole part
(`0 < x <= 0.5` took 0), and reads bounds of many digits as a neighbour of the double. It holds closed bounds of few
digits (`is_carried`); others are written as patterns (`patterns`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import Any, TypeGuard

__all__ = ["BOUNDS", "EXACT", "Number", "carried", "closed_bounds", "is_carried", "is_infinite", "is_number"]

BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
EXACT = 2**53
"""Up to here every whole number is a double."""
# What the library's reader (serde_json) takes for the double that it is.
_MOST_DIGITS, _MOST_PLACES = 15, 22

Number = int | float


def is_number(value: Any) -> TypeGuard[Number]:
    """Whether `value` is a number to JSON: true is none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def closed_bounds(schema: Mapping[str, Any], *, is_whole: bool = False) -> tuple[Number | None, Number | None]:
    """The least and the most that the bounds of `schema` let through; `is_whole`: of whole numbers only.

    Draft 4 has `exclusiveMinimum: true` beside a `minimum`. What is no number is no bound, and infinity bounds nothing.
    """
    lowest = _tightest(schema, "minimum", "exclusiveMinimum", _least_whole if is_whole else _least, max)
    highest = _tightest(schema, "maximum", "exclusiveMaximum", _most_whole if is_whole else _most, min)
    return None if lowest == -math.inf else lowest, None if highest == math.inf else highest


def is_carried(value: Number) -> bool:
    """Whether the library reads `value`, and writes it, as it is."""
    return abs(value) <= EXACT and (isinstance(value, int) or carried(value, up=True) == carried(value, up=False))


def carried(value: Number, *, up: bool) -> Number:
    """The next number at or above `value`, or else below, that is carried; beyond whole doubles there is none."""
    if isinstance(value, int):
        return value
    rounding = ROUND_CEILING if up else ROUND_FLOOR
    found = Context(prec=_MOST_DIGITS, rounding=rounding).create_decimal(repr(value))
    if found != 0 and Decimal(repr(value)).adjusted() - _MOST_DIGITS < -_MOST_PLACES:
        found = found.quantize(Decimal(1).scaleb(-_MOST_PLACES), rounding)
    return int(found) if found == int(found) else float(found)


def _tightest(
    schema: Mapping[str, Any],
    name: str,
    exclusive: str,
    closed: Callable[[Number, bool], Number],
    tighter: Callable[[list[Number]], Number],
) -> Number | None:
    bound, beyond = schema.get(name), schema.get(exclusive)
    found = [closed(bound, beyond is True)] if is_number(bound) else []
    found += [closed(beyond, True)] if is_number(beyond) else []
    return tighter(found) if found else None


def _least_whole(bound: Number, is_open: bool) -> Number:
    if is_infinite(bound):
        return bound
    return math.floor(bound) + 1 if is_open else math.ceil(bound)


def _most_whole(bound: Number, is_open: bool) -> Number:
    return -_least_whole(-bound, is_open)


def is_infinite(bound: Number) -> bool:
    """A whole number may be beyond all doubles, and is none the less a number."""
    return isinstance(bound, float) and math.isinf(bound)


def _least(bound: Number, is_open: bool) -> Number:
    """The first that is not below `bound`, or is above it."""
    if not is_open or is_infinite(bound):
        return bound + 0  # no minus before nothing
    if isinstance(bound, int) and abs(bound) >= EXACT:
        return bound + 1
    return math.nextafter(bound, math.inf)


def _most(bound: Number, is_open: bool) -> Number:
    return -_least(-bound, is_open) + 0
