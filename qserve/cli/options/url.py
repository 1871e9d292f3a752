"""The --url of a server, checked before anything is imported."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import click

__all__ = ["ServerUrl"]


class ServerUrl(click.ParamType):  # type: ignore[type-arg]
    """`http://127.0.0.1:8000`, or https."""

    name = "url"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            parts = urlsplit(str(value))
            is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:  # of a port, or of brackets
            is_address = False
        if not is_address or any(char.isspace() or not char.isprintable() for char in value):
            self.fail(f"{value!r} is not the address of a server; write it as http://127.0.0.1:8000", param, ctx)
        return str(value)
