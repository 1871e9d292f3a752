"""Bounds of numbers for xgrammar, which writes six places behind the point, and reads bounds as doubles, or int64.

It draws finer bounds in; where nothing is left between them its engine finds no token that may come.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import Any

from qserve.engines.vllm.wire.unenforceable import UnenforceableSchema
from qserve.grammar.number_bounds import BOUNDS, EXACT, Number, closed_bounds, is_number

__all__ = ["check_values", "number_for_xgrammar"]

_INT64 = 2**63
_LAST_PLACE = Decimal(10) ** -6
_DIGITS = Context(prec=1000)


def number_for_xgrammar(own: dict[str, Any], where: str, *, is_whole: bool) -> dict[str, Any]:
    """Keywords of a schema of numbers, as closed bounds that it holds. Raises UnenforceableSchema."""
    if not any(is_number(own.get(name)) for name in BOUNDS):
        return own
    lowest, highest = closed_bounds(own, is_whole=is_whole)
    if not is_whole:
        lowest, highest = _as_double(lowest, up=True), _as_double(highest, up=False)
    found = {name: value for name, value in own.items() if name not in BOUNDS}
    for name, bound in (("minimum", lowest), ("maximum", highest)):
        if bound is None:
            continue
        if not -_INT64 <= bound < _INT64:
            raise UnenforceableSchema(name, where, " beyond int64")
        found[name] = bound
    if lowest is not None and highest is not None and lowest <= highest and not is_whole:
        _check_room(lowest, highest, where)
    return found


def check_values(values: Sequence[Any], keyword: str, where: str) -> None:
    """Raises UnenforceableSchema for listed whole numbers that it does not write."""
    if any(isinstance(one, int) and not -_INT64 <= one < _INT64 for one in values):
        raise UnenforceableSchema(keyword, where, " of a number beyond int64")


def _as_double(bound: Number | None, *, up: bool) -> Number | None:
    """The next one that it can read as it is. What is beyond int64 may be no double, and is refused as it is."""
    if bound is None or abs(bound) <= EXACT or not -_INT64 <= bound < _INT64:
        return bound
    found = float(bound)
    while found < bound if up else found > bound:
        found = math.nextafter(found, math.inf if up else -math.inf)
    return int(found)


def _check_room(lowest: Number, highest: Number, where: str) -> None:
    first = Decimal(repr(lowest)).quantize(_LAST_PLACE, ROUND_CEILING, _DIGITS)
    if first > Decimal(repr(highest)).quantize(_LAST_PLACE, ROUND_FLOOR, _DIGITS):
        raise UnenforceableSchema("minimum", where, " that leaves nothing of six places below the 'maximum'")
