"""Bounds on the numbers of a JSON schema that a grammar library multiplies by: the library itself has none.

llguidance writes a list item by item, and a multiple digit by remainder: `maxItems: 1e9` takes 19 GiB. Within these
bounds a keyword takes 25 MiB and 0.3 s at most. Other numbers (lengths, ranges, numbers of properties) cost it nothing.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

from qserve.grammar.number_bounds import is_number
from qserve.grammar.references import BY_NAME, DATA
from qserve.wire.errors import ApiError

__all__ = ["check_counts", "check_counts_within"]

MOST_ITEMS = 10_000
MOST_MULTIPLE = 100_000
"""The digits of a multiple, without zeros at its end: 0.05 has 5, 86400 has 864."""

_MOST_SHOWN = 1e20
_COUNTS = tuple(f"{end}{of}" for of in ("Items", "Length", "Properties", "Contains") for end in ("min", "max"))
_EMBEDDED = re.compile(r"%json\s*(?=\{)")


def check_counts(schema: Any, param: str, *, multiplies: bool = True) -> None:
    """Raises ApiError 400, of the field `param`, which names the keyword, its value and the bound.

    `multiplies`: the library does, as llguidance. No library knows what less than none is; xgrammar ends a request.
    """
    for one in _schemas(schema):
        for keyword in _COUNTS:
            number = _number(one.get(keyword))
            _refuse(number < 0, keyword, number, "0 or more", param)
        if not multiplies:
            continue
        for keyword in ("minItems", "maxItems"):
            number = _number(one.get(keyword))
            _refuse(number > MOST_ITEMS, keyword, number, f"at most {MOST_ITEMS:,}", param)
        number = _number(one.get("multipleOf"))
        _refuse(
            _digits(number) > MOST_MULTIPLE,
            "multipleOf",
            number,
            f"at most {MOST_MULTIPLE:,}, not counting zeros at the end",
            param,
        )


def check_counts_within(lark: str, param: str) -> None:
    """The same for each schema that a Lark grammar holds (`%json {…}`); one that is no JSON is left to the library."""
    for found in _EMBEDDED.finditer(lark):
        try:
            schema, _ = json.JSONDecoder().raw_decode(lark, found.end())
        except (ValueError, RecursionError):
            continue
        check_counts(schema, param)


def _refuse(is_refused: bool, keyword: str, number: float, most: str, param: str) -> None:
    if is_refused:
        shown = f"{number:,}" if abs(number) < _MOST_SHOWN else f"{'below -' if number < 0 else 'above '}1e20"
        message = f"'{keyword}' in the structure is {shown}; it can be {most}. Leave it out, or check it in the answer"
        raise ApiError(400, message, "invalid_grammar", param)


def _number(value: Any) -> float:
    return value if is_number(value) else 0


def _digits(number: float) -> float:
    if not abs(number) < _MOST_SHOWN:
        return math.inf
    return int("".join(map(str, Decimal(repr(number)).normalize().as_tuple().digits)))


def _schemas(root: Any) -> Iterator[Mapping[str, Any]]:
    """`root` and all schemas in it."""
    waiting = [root]
    while waiting:
        one = waiting.pop()
        if isinstance(one, list):
            waiting += one
        elif isinstance(one, dict):
            yield one
            for name, value in one.items():
                if name in BY_NAME and isinstance(value, dict):
                    waiting += value.values()
                elif name not in DATA:
                    waiting.append(value)
