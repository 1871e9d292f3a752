"""Parses the sign-in form."""

from __future__ import annotations

from urllib.parse import parse_qs

__all__ = ["MAX_FORM_BYTES", "key_of_form"]

MAX_FORM_BYTES = 16 * 1024


def key_of_form(body: bytes) -> bytes:
    """The submitted key; b"" if the form has none."""
    fields = parse_qs(body.decode("utf-8", "replace"))
    return fields.get("key", [""])[0].strip().encode("utf-8", "replace")
