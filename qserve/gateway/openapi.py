"""/openapi.json, built from `ROUTES` and the schemas that check the requests: it says what they do, nothing else."""

from __future__ import annotations

import functools
import json
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

import qserve
from qserve.gateway.auth import OPEN_PATHS
from qserve.gateway.routes import ROUTES, RelayedRoute, Route
from qserve.wire import responses

__all__ = ["document"]

_REF = "#/components/schemas/{model}"
_ERRORS_OF_ANY = {"500": "a fault inside qserve; its log has the request id"}
_ERRORS_OF_RELAYED = {
    "400": "a field is wrong, unknown or unsupported, or the prompt is too long",
    "404": "the model is not served here",
    "408": "the body stopped arriving",
    "413": "the body is too large",
    "415": "the body is not declared as JSON",
    "502": "the worker died or answered nonsense",
    "503": "the worker is not ready, or the server drains; Retry-After tells when to come back",
}
_QUEUE_FULL = {"429": "the queue is full; Retry-After tells when to come back"}


@functools.cache
def document(with_keys: bool, served: tuple[str, ...]) -> bytes:
    """OpenAPI 3.1 as JSON. `with_keys`: whether this gateway asks for an API key; `served`: the models' names."""
    models: list[type[BaseModel]] = [responses.ErrorBody, *responses.OF_ROUTE.values()]
    models += [route.request for route in ROUTES if isinstance(route, RelayedRoute)]
    _, schemas = models_json_schema([(model, "validation") for model in models], ref_template=_REF)
    for schema in schemas["$defs"].values():
        _allow_nulls(schema)
    for route in ROUTES:
        if isinstance(route, RelayedRoute):
            _name_models(schemas["$defs"][route.request.__name__]["properties"]["model"], served)
    components: dict[str, Any] = {"schemas": schemas["$defs"]}
    if with_keys:
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    paths: dict[str, Any] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, with_keys, served)
    value = {
        "openapi": "3.1.0",
        "info": {"title": "qserve", "version": qserve.__version__, "license": {"name": "Apache-2.0"}},
        "paths": paths,
        "components": components,
    }
    return json.dumps(value).encode()


def _operation(route: Route, with_keys: bool, served: tuple[str, ...]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.operation_id,
        "summary": route.summary,
        "responses": {"200": _success(route), **_errors(route, with_keys)},
    }
    if with_keys and route.path not in OPEN_PATHS:
        operation["security"] = [{"key": []}]
    if "{model}" in route.path:
        name = {"type": "string", "enum": list(served)}
        operation["parameters"] = [{"name": "model", "in": "path", "required": True, "schema": name}]
    if isinstance(route, RelayedRoute):
        operation["requestBody"] = {"required": True, "content": {"application/json": _ref(route.request.__name__)}}
    return operation


def _allow_nulls(schema: dict[str, Any]) -> None:
    """In a request null means "not given", for fields that we know and for those that we do not."""
    if schema.get("additionalProperties") is not False:
        return
    schema["additionalProperties"] = {"type": "null"}
    optional = schema["properties"].keys() - set(schema.get("required", ()))
    for name in optional:
        one = schema["properties"][name]
        if {"type": "null"} not in one.get("anyOf", ()):
            schema["properties"][name] = {"anyOf": [one, {"type": "null"}]}


def _name_models(schema: dict[str, Any], served: tuple[str, ...]) -> None:
    """Narrows the schema of a field `model`, a string or perhaps null, to the names that are served."""
    for one in schema.get("anyOf", [schema]):
        if one["type"] == "string":
            one["enum"] = list(served)


def _success(route: Route) -> dict[str, Any]:
    if route.path == "/metrics":
        content: dict[str, Any] = {"text/plain": {"schema": {"type": "string"}}}
    elif route.path == "/openapi.json":
        content = {"application/json": {"schema": {"type": "object"}}}
    else:
        content = {"application/json": _ref(responses.OF_ROUTE[route.path].__name__)}
    if isinstance(route, RelayedRoute) and route.num_sequences is not None:
        content["text/event-stream"] = {}  # data: {a chunk}, …, data: [DONE]
    return {"description": "the answer", "content": content}


def _errors(route: Route, with_keys: bool) -> dict[str, Any]:
    meanings = dict(_ERRORS_OF_ANY)
    if with_keys and route.path not in OPEN_PATHS:
        meanings["401"] = "no key, or a wrong one"
    if isinstance(route, RelayedRoute):
        meanings |= _ERRORS_OF_RELAYED
        if route.num_sequences is not None:
            meanings |= _QUEUE_FULL
    elif "{model}" in route.path:
        meanings["404"] = _ERRORS_OF_RELAYED["404"]
    elif route.path == "/ready":
        meanings["503"] = "a worker is not ready; the body tells the state of each beside the error"
    error = {"application/json": _ref(responses.ErrorBody.__name__)}
    return {status: {"description": text, "content": error} for status, text in sorted(meanings.items())}


def _ref(name: str) -> dict[str, Any]:
    return {"schema": {"$ref": _REF.format(model=name)}}
