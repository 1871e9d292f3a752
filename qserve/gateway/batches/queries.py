"""Query parameters of lists of files and batches."""

from __future__ import annotations

from urllib.parse import parse_qsl

from starlette.types import Scope

from qserve.batches.files import Page
from qserve.wire.errors import ApiError

__all__ = ["page_of"]


def page_of(scope: Scope, names: tuple[str, ...], default: int, most: int) -> Page:
    """The requested page. Raises ApiError 400 for an unknown parameter or an invalid value."""
    given = _values(scope)
    for name in given.keys() - set(names):
        message = f"{name[:100]!r} is not a parameter of this query; allowed are {', '.join(names)}"
        raise ApiError(400, message, "unsupported_field", name[:100])
    limit = given.get("limit", str(default))
    if not (limit.isascii() and limit.isdigit() and 1 <= int(limit[:9]) <= most):
        raise ApiError(400, f"'limit' must be a number from 1 to {most}", "invalid_value", "limit")
    order = given.get("order", "desc")
    if order not in ("asc", "desc"):
        raise ApiError(400, "'order' must be asc or desc", "invalid_value", "order")
    return Page(int(limit), given.get("after"), order, given.get("purpose"))


def _values(scope: Scope) -> dict[str, str]:
    try:
        query = scope["query_string"].decode("ascii")
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query), errors="strict", max_num_fields=16)
    except ValueError:
        raise ApiError(400, "the query can't be read; write it as ?limit=20&after=ID", "invalid_value") from None
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ApiError(400, "the query has the same name twice", "invalid_value")
    return values
