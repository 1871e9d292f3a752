"""A value that a client sent, described for sentences about what is wrong with it."""

from __future__ import annotations

import json
from typing import Any

from qserve.units import counted

__all__ = ["describe_json"]

_MAX_SEEN = 40
_MAX_SEEN_BITS = 128


def describe_json(value: Any) -> str:
    """A value; of a long one how long it is."""
    if isinstance(value, str):
        return f"'{value}'" if 0 < len(value) <= _MAX_SEEN else _sized("a string", len(value), "character")
    if isinstance(value, list):
        return _sized("a list", len(value), "item")
    if isinstance(value, dict):
        return "an object" if value else "an empty object"
    if isinstance(value, int) and value.bit_length() > _MAX_SEEN_BITS:
        return "a number of very many digits"
    return json.dumps(value)


def _sized(what: str, number: int, of: str) -> str:
    return f"{what} of {counted(number, of)}" if number else what.replace("a ", "an empty ")
