"""Parameters, answers and errors of keys with names in /openapi.json."""

from __future__ import annotations

from typing import Any

__all__ = ["ERRORS_OF_KEYS", "USAGE", "USAGE_ERRORS", "USAGE_INPUTS"]

USAGE = "/v1/qserve/usage"
USAGE_INPUTS: dict[tuple[str, str], dict[str, Any]] = {
    ("GET", USAGE): {
        "parameters": [{"name": "format", "in": "query", "schema": {"type": "string", "enum": ["json", "csv"]}}]
    }
}
"""By method and path."""

USAGE_ERRORS = {"400": "the format is none of these", "404": "the gateway has no keys with names"}
ERRORS_OF_KEYS = {
    "403": "the key may not ask this model",
    "429": "the key has used what it may a minute or a day, or too many requests wait",
}
"""Of relayed routes, by status."""
