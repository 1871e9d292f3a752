"""Parameters and errors of the routes of background responses in /openapi.json."""

from __future__ import annotations

from typing import Any

__all__ = ["RESPONSE_ERRORS", "RESPONSE_INPUTS"]

_ID = {"name": "response_id", "in": "path", "required": True, "schema": {"type": "string"}}

RESPONSE_INPUTS: dict[tuple[str, str], dict[str, Any]] = {
    ("GET", "/v1/responses/{response_id}"): {
        "parameters": [
            _ID,
            {"name": "stream", "in": "query", "schema": {"type": "boolean"}},
            {
                "name": "starting_after",
                "in": "query",
                "schema": {"type": "integer", "minimum": 0, "maximum": 999_999_999},
            },
            {"name": "include_obfuscation", "in": "query", "schema": {"type": "boolean"}},
        ]
    }
}
"""By method and path."""

RESPONSE_ERRORS = {"400": "a parameter is wrong or unknown", "404": "this key has no such background response"}
"""By status."""
