"""GET /v1/qserve/usage: what keys have used today, and what they have left."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import parse_qs

from starlette.types import Receive, Scope, Send

from qserve.gateway.auth import owner_of
from qserve.gateway.keys.book import NamedKeys
from qserve.gateway.respond import send_body, send_json
from qserve.wire.errors import ApiError

__all__ = ["UsageEndpoint"]

_FORMATS = ("json", "csv")


class UsageEndpoint:
    """A key with a name sees its own use, any other key that of all."""

    def __init__(self, keys: NamedKeys | None) -> None:
        """None: this gateway has no keys with names."""
        self._keys = keys

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The table of today, as JSON or CSV."""
        query = parse_qs(scope.get("query_string", b"").decode("latin-1"))
        kind = query.get("format", ["json"])[-1]
        if kind not in _FORMATS:
            raise ApiError(
                400, f"'format' is {kind[:40]!r}; it is one of {', '.join(_FORMATS)}", "invalid_value", "format"
            )
        if self._keys is None:
            raise ApiError(404, "this gateway has no keys with names; start it with --keys FILE", "no_named_keys")
        entry = self._keys.of_request(owner_of(scope))
        rows = await self._keys.ledger.document(None if entry is None else entry.name)
        if kind == "csv":
            await send_body(send, 200, _csv(rows).encode(), b"text/csv; charset=utf-8")
        else:
            await send_json(send, 200, {"object": "list", "data": rows})


def _csv(rows: Sequence[Mapping[str, Any]]) -> str:
    text = io.StringIO()
    if rows:
        writer = csv.DictWriter(text, list(rows[0]))
        writer.writeheader()
        for row in rows:
            models = row["models"]
            writer.writerow({**row, "models": "" if models is None else " ".join(models)})
    return text.getvalue()
