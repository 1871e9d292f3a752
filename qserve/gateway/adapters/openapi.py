"""Bodies and errors of the routes of adapters in /openapi.json."""

from __future__ import annotations

from typing import Any

__all__ = ["ADAPTERS", "ADAPTER_ERRORS", "ADAPTER_INPUTS"]

ADAPTERS = "/v1/qserve/adapters"
ADAPTER_INPUTS: dict[tuple[str, str], dict[str, Any]] = {
    ("POST", ADAPTERS): {
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/LoadAdapterRequest"}}},
        }
    }
}
"""By method and path."""

_OF_ALL = {"403": "the request has none of the service's own keys", "501": "no process here can load adapters"}
_OF_BODIES = {
    "408": "the body stopped arriving",
    "413": "the body is too large",
    "415": "the body is not declared as JSON",
    "429": "too many bodies are being read",
}
ADAPTER_ERRORS = {
    "GET": _OF_ALL,
    "POST": _OF_ALL
    | _OF_BODIES
    | {
        "400": "a field is wrong, or this model can't take the adapter",
        "404": "the model is not served here, or there is no adapter in the folder",
        "409": "the name is taken, or there is no room",
        "502": "a worker could not load it; it was unloaded from the others",
        "503": "the model has not been started yet",
    },
    "DELETE": _OF_ALL | {"404": "no adapter of this name was loaded", "409": "it was given at the start"},
}
"""By method, then status."""
