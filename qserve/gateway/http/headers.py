"""Headers of a request by name. Most that are asked for are absent, which is found without a look at all of them."""

from __future__ import annotations

from typing import Any

__all__ = ["values_of"]

_NAMES = "qserve.names"


def values_of(scope: Any, name: bytes) -> list[bytes]:
    """All values of the header, in order."""
    headers = scope["headers"]
    of, names = scope.get(_NAMES) or (None, {})
    if of is not headers:  # new, or a copy of another request's scope
        names = dict(headers)
        scope[_NAMES] = headers, names
    return [value for key, value in headers if key == name] if name in names else []
