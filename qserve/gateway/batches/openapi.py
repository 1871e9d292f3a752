"""Parameters, bodies and errors of the routes of files and batches in /openapi.json."""

from __future__ import annotations

from typing import Any

__all__ = ["BATCH_ERRORS", "BATCH_INPUTS"]

_AFTER = {"name": "after", "in": "query", "schema": {"type": "string", "pattern": "^(file-|batch_)[0-9a-f]{32}$"}}
_ORDER = {"name": "order", "in": "query", "schema": {"enum": ["asc", "desc"]}}
_PURPOSE = {"name": "purpose", "in": "query", "schema": {"enum": ["batch", "batch_output"]}}
_FORM = {
    "type": "object",
    "required": ["file", "purpose"],
    "properties": {
        "file": {"type": "string", "format": "binary", "minLength": 1},
        "purpose": {"enum": ["batch"]},
        "expires_after[anchor]": {"enum": ["created_at"]},
        "expires_after[seconds]": {"type": "integer", "minimum": 3600, "maximum": 2592000},
    },
    "dependentRequired": {
        "expires_after[anchor]": ["expires_after[seconds]"],
        "expires_after[seconds]": ["expires_after[anchor]"],
    },
    "additionalProperties": False,
}


def _limit(most: int) -> dict[str, Any]:
    return {"name": "limit", "in": "query", "schema": {"type": "integer", "minimum": 1, "maximum": most}}


BATCH_INPUTS: dict[tuple[str, str], dict[str, Any]] = {
    ("POST", "/v1/files"): {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": _FORM}}}},
    ("GET", "/v1/files"): {"parameters": [_AFTER, _limit(10_000), _ORDER, _PURPOSE]},
    ("POST", "/v1/batches"): {
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/CreateBatchRequest"}}},
        }
    },
    ("GET", "/v1/batches"): {"parameters": [_AFTER, _limit(100)]},
}
"""By method and path."""

BATCH_ERRORS = {
    "400": "a field is wrong or unknown, or there is no space for more files",
    "403": "another site's page sent it",
    "404": "this key has no such file or batch",
    "408": "the body stopped arriving",
    "409": "a batch reads the file, or the batch has ended",
    "413": "the body is too large",
    "415": "the body is of another type",
    "429": "too many batches of this key have not ended, or too many files are being uploaded",
    "501": "no files are kept here",
    "503": "the folder of files can't be read or written",
}
"""By status."""
