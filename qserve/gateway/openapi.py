"""Builds /openapi.json from `ROUTES` and the schemas that validate the requests."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from qserve.gateway.adapters.openapi import ADAPTER_ERRORS, ADAPTER_INPUTS
from qserve.gateway.auth import OPEN_PATHS
from qserve.gateway.background.openapi import RESPONSE_ERRORS, RESPONSE_INPUTS
from qserve.gateway.batches.openapi import BATCH_ERRORS, BATCH_INPUTS
from qserve.gateway.keys.openapi import ERRORS_OF_KEYS, USAGE, USAGE_ERRORS, USAGE_INPUTS
from qserve.gateway.openapi_bounds import bound_ids, bound_lengths
from qserve.gateway.residency import ACTIONS, RESIDENCY_ERRORS, ROOM, ROOM_ERRORS, ROOM_INPUTS
from qserve.gateway.routes import ADAPTER_ROUTES, BATCH_ROUTES, RESPONSE_ROUTES, ROUTES, RelayedRoute, Route, dialect_of
from qserve.version import __version__
from qserve.wire import responses
from qserve.wire.adapters import LoadAdapterRequest
from qserve.wire.batches import CreateBatchRequest
from qserve.wire.engine_fields import EngineFields
from qserve.wire.errors import Dialect
from qserve.wire.openai import INT64_MAX, MAX_TOKEN_ID
from qserve.wire.reward.table import BY_PATH
from qserve.wire.room import RoomRequest
from qserve.worker.base import WorkerFacts
from qserve.worker.wire import WireRoute
from qserve.worker.wires import BySchema

__all__ = ["DocumentedWorker", "document"]

_REF = "#/components/schemas/{model}"
_RESTART = "/v1/qserve/restart"
_EVENTS = ("GET", "/v1/responses/{response_id}")
_ERRORS_OF_ANY = {"500": "a fault inside qserve; its log has the request id"}
_ERRORS_OF_RELAYED = {
    "400": "a field is wrong, unknown or unsupported, or the prompt is too long",
    "404": "the model is not served here, or no worker serves this route",
    "408": "the body stopped arriving",
    "413": "the body is too large",
    "415": "the body is not declared as JSON",
    "422": "two workers died while they answered this request",
    "502": "the worker died or sent an invalid answer",
    "503": "the worker is not ready, or the server drains; Retry-After says when to try again",
}
# Their clients send an arbitrary name, which is ignored.
_UNNAMED = {
    offered.reader.schema
    for route in ROUTES
    if isinstance(route, RelayedRoute) and not route.names_model
    for offered in route.offers()
    if isinstance(offered.reader, BySchema)
}
_ERRORS_OF_PATH = {
    _RESTART: {
        "403": "the request or the server has no admin key",
        "409": "a rolling restart is running",
        "501": "no process here can restart workers",
    },
    **{f"/v1/qserve/models/{{model}}/{one}": RESIDENCY_ERRORS for one in ACTIONS},
    ROOM: ROOM_ERRORS["POST"],
    f"{ROOM}/{{room}}": ROOM_ERRORS["DELETE"],
    "/ready": {"503": "a worker is not ready; the body has the error and the state of each worker"},
    USAGE: USAGE_ERRORS,
}
_QUEUE_FULL = {"429": "the queue is full; Retry-After says when to try again"}


@dataclass(frozen=True)
class DocumentedWorker:
    """What the document says of one worker."""

    role: str
    wire: str
    names: tuple[str, ...]
    request_fields: EngineFields | None
    max_model_len: int = INT64_MAX
    vocab_size: int | None = None

    @classmethod
    def of(cls, facts: WorkerFacts) -> DocumentedWorker:
        """From the worker's current state."""
        return cls(facts.role, facts.wire, facts.names, facts.request_fields, facts.max_model_len, facts.vocab_size)


@functools.lru_cache(maxsize=8)
def document(with_keys: bool, workers: tuple[DocumentedWorker, ...]) -> bytes:
    """OpenAPI 3.1 as JSON: the routes that these workers serve. `with_keys`: whether the gateway asks for a key."""
    components: dict[str, Any] = {"schemas": _own_schemas(workers)}
    if with_keys:
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    served = tuple(name for one in workers for name in one.names)
    paths: dict[str, Any] = {}
    for route in ROUTES:
        operation = _operation(route, with_keys, served)
        if isinstance(route, RelayedRoute):
            answering = [(one, found) for one in workers if (found := route.served(one)) is not None]
            if not answering:
                continue
            read = [_body(one, found, route, components["schemas"]) for one, found in answering]
            bodies = [body for body in read if body]
            if bodies:
                schema = bodies[0] if len(bodies) == 1 else {"anyOf": bodies}
                operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
        paths.setdefault(route.path, {})[route.method.lower()] = operation
    value = {
        "openapi": "3.1.0",
        "info": {"title": "qserve", "version": __version__, "license": {"name": "Apache-2.0"}},
        "paths": paths,
        "components": components,
    }
    return json.dumps(value).encode()


def _own_schemas(workers: tuple[DocumentedWorker, ...]) -> dict[str, Any]:
    takers = _takers(workers)
    requests = tuple(takers)
    models: list[type[BaseModel]] = [
        responses.ErrorBody,
        responses.AnthropicErrorBody,
        responses.TeiErrorBody,
        *responses.OF_ROUTE.values(),
        *responses.OF_METHOD.values(),
        CreateBatchRequest,
        LoadAdapterRequest,
        RoomRequest,
        *requests,
    ]
    _, schemas = models_json_schema([(model, "validation") for model in models], ref_template=_REF)
    own: dict[str, Any] = schemas["$defs"]
    for schema in own.values():
        _allow_nulls(schema)
    for request, answering in takers.items():
        schema = own[request.__name__]
        if request not in _UNNAMED:
            _name_models(schema["properties"]["model"], tuple(name for one in answering for name in one.names))
        if answering:
            bound_ids(schema, max(one.vocab_size or MAX_TOKEN_ID + 1 for one in answering))
            if answering[0].role == "chat":
                bound_lengths(schema, max(one.max_model_len for one in answering))
    return own


def _takers(workers: tuple[DocumentedWorker, ...]) -> dict[type[BaseModel], list[DocumentedWorker]]:
    """qserve's request schemas, with the workers that accept each."""
    takers: dict[type[BaseModel], list[DocumentedWorker]] = {}
    for route in (one for one in ROUTES if isinstance(one, RelayedRoute)):
        for offered in route.offers():
            if isinstance(offered.reader, BySchema):
                known = takers.setdefault(offered.reader.schema, [])
                known += [one for one in workers if route.served(one) is offered and one not in known]
    return takers


def _body(one: DocumentedWorker, served: WireRoute, route: RelayedRoute, schemas: dict[str, Any]) -> dict[str, Any]:
    """The schema of the body that this worker takes. The engine's join `schemas`."""
    return served.reader.schema_of(served.path or route.path, one.request_fields, schemas)


def _operation(route: Route, with_keys: bool, served: tuple[str, ...]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.operation_id,
        "summary": route.summary,
        "responses": {"202" if route.path == _RESTART else "200": _success(route), **_errors(route, with_keys)},
    }
    if with_keys and route.path not in OPEN_PATHS:
        operation["security"] = [{"key": []}]
    if "{" in route.path:
        parameter = route.path.partition("{")[2].partition("}")[0]
        name = {"type": "string", "enum": list(served)} if parameter == "model" else {"type": "string"}
        operation["parameters"] = [{"name": parameter, "in": "path", "required": True, "schema": name}]
    inputs = {**BATCH_INPUTS, **RESPONSE_INPUTS, **USAGE_INPUTS, **ADAPTER_INPUTS, **ROOM_INPUTS}
    operation |= inputs.get((route.method, route.path), {})
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
    elif route.path in ("/report", "/report/{run}"):
        content = {"text/html": {"schema": {"type": "string"}}}
    elif route.path == "/openapi.json":
        content = {"application/json": {"schema": {"type": "object"}}}
    elif route.path.endswith("/content"):
        content = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
    elif (route.method, route.path) in responses.OF_METHOD:
        content = {"application/json": _ref(responses.OF_METHOD[route.method, route.path].__name__)}
    elif route.path in responses.OF_ROUTE:
        content = {"application/json": _ref(responses.OF_ROUTE[route.path].__name__)}
    elif route.path in BY_PATH:
        content = {"application/json": {"schema": dict(BY_PATH[route.path].response)}}
    else:  # as the engine's own document says
        content = {"application/json": {"schema": {"type": "object"}}}
    if (isinstance(route, RelayedRoute) and route.streams) or (route.method, route.path) == _EVENTS:
        content["text/event-stream"] = {}  # data: {a chunk}, …, data: [DONE]
    if route.path == USAGE:
        content["text/csv"] = {"schema": {"type": "string"}}
    return {"description": "the answer", "content": content}


def _errors(route: Route, with_keys: bool) -> dict[str, Any]:
    meanings = dict(_ERRORS_OF_ANY)
    if with_keys and route.path not in OPEN_PATHS:
        meanings["401"] = "no key, or a wrong one"
    if isinstance(route, RelayedRoute):
        meanings |= _ERRORS_OF_RELAYED
        if any(getattr(offered.reader, "count", None) is not None for offered in route.offers()):
            meanings |= _QUEUE_FULL
        if with_keys:
            meanings |= ERRORS_OF_KEYS
    elif route in BATCH_ROUTES:
        meanings |= BATCH_ERRORS
    elif route in RESPONSE_ROUTES:
        meanings |= RESPONSE_ERRORS
    elif route in ADAPTER_ROUTES:
        meanings |= ADAPTER_ERRORS[route.method]
    elif "{model}" in route.path:
        meanings["404"] = _ERRORS_OF_RELAYED["404"]
        if with_keys:
            meanings["403"] = ERRORS_OF_KEYS["403"]
    elif route.path.startswith(("/v1/qserve/runs", "/v1/qserve/trainings", "/report")):
        meanings["503"] = "the store can't be read"
        if "{run}" in route.path or route.path == "/report":
            meanings["404"] = "no run has an id that begins like this, or no runs are kept"
    meanings |= _ERRORS_OF_PATH.get(route.path, {})
    shapes = {Dialect.ANTHROPIC: responses.AnthropicErrorBody, Dialect.TEI: responses.TeiErrorBody}
    shape = shapes.get(dialect_of(route.path), responses.ErrorBody)
    error = {"application/json": _ref(shape.__name__)}
    return {status: {"description": text, "content": error} for status, text in sorted(meanings.items())}


def _ref(name: str) -> dict[str, Any]:
    return {"schema": {"$ref": _REF.format(model=name)}}
