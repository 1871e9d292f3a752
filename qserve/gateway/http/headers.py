"""Headers of a request by name, of which an index is made once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["values_of"]

_INDEX = "qserve.headers"
_UNKNOWN: tuple[Any, dict[bytes, list[bytes]]] = (None, {})


def values_of(scope: Any, name: bytes) -> Sequence[bytes]:
    """All values of the header, in order."""
    headers = scope["headers"]
    index: dict[bytes, list[bytes]]
    of, index = scope.get(_INDEX, _UNKNOWN)
    if of is not headers:  # new, or a copy of another request's scope
        index = {}
        for key, value in headers:
            index.setdefault(key, []).append(value)
        scope[_INDEX] = headers, index
    return index.get(name, ())
