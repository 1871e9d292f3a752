"""Adapts an engine's request schemas for /openapi.json: no additional fields, without those refused here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qserve.engines.vllm.wire import requests

__all__ = ["engine_schema"]

_REF = "#/components/schemas/"


def engine_schema(document: Mapping[str, Any], path: str, prefix: str, schemas: dict[str, Any]) -> dict[str, Any]:
    """The body of POST `path` in the engine's `document`. What it refers to is added to `schemas` as `prefix.Name`."""
    own = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    copied: dict[str, Any] = _copy(own, prefix)
    waiting = _names(own)
    while waiting:
        name = waiting.pop()
        if f"{prefix}.{name}" not in schemas:
            source = document["components"]["schemas"][name]
            schemas[f"{prefix}.{name}"] = _copy(source, prefix)
            waiting |= _names(source)
    for name in _names(own):
        _adapt_request(schemas[f"{prefix}.{name}"])
    return copied


def _adapt_request(schema: dict[str, Any]) -> None:
    properties = schema.get("properties", {})
    for name in requests.REFUSED.keys() & properties.keys():
        del properties[name]
    for name in requests.HARMLESS - properties.keys():
        properties[name] = {"description": "harmless: taken and not used"}


def _copy(schema: Any, prefix: str) -> Any:
    if isinstance(schema, list):
        return [_copy(one, prefix) for one in schema]
    if not isinstance(schema, dict):
        return schema
    copied = {name: _copy(one, prefix) for name, one in schema.items()}
    if isinstance(schema.get("$ref"), str):
        copied["$ref"] = _REF + f"{prefix}.{schema['$ref'].removeprefix(_REF)}"
    if isinstance(schema.get("properties"), dict):
        copied["additionalProperties"] = {"type": "null"}
    copied.pop("discriminator", None)  # its mapping has the schemas' old names and is redundant
    return copied


def _names(schema: Any) -> set[str]:
    """The components that a schema refers to itself."""
    if isinstance(schema, list):
        return set().union(*(_names(one) for one in schema))
    if not isinstance(schema, dict):
        return set()
    here = {schema["$ref"].removeprefix(_REF)} if isinstance(schema.get("$ref"), str) else set()
    return here.union(*(_names(one) for one in schema.values()))
