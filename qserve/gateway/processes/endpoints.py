"""A worker's endpoint as JSON for other processes: whole at first, then the fields that the supervisor changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from qserve.engine.base import Api, TcpAddress, UnixAddress, WorkerEndpoint, WorkerState
from qserve.wire.engine_fields import fields_of

__all__ = ["changing", "document_of", "endpoint_of", "update"]

_PLAIN = (
    "detail", "max_num_seqs", "max_model_len", "plan", "start_phases_s", "num_restarts", "max_prompt_bytes",
    "max_positions", "vocab_size", "tells_report", "schema_library", "thinks_in_text", "takes_one_system",
)  # fmt: skip
_CHANGING = (*_PLAIN, "state", "address", "key", "models", "adapters", "request_fields")


def changing(endpoint: WorkerEndpoint) -> tuple[Any, ...]:
    """The fields that the supervisor changes, for comparison."""
    return tuple(getattr(endpoint, name) for name in _CHANGING)


def document_of(endpoint: WorkerEndpoint) -> dict[str, Any]:
    """The whole endpoint."""
    address = endpoint.address
    fields = endpoint.request_fields
    return {
        **{name: getattr(endpoint, name) for name in _PLAIN},
        "name": endpoint.name,
        "models": list(endpoint.models),
        "adapters": list(endpoint.adapters),
        "address": str(address.path) if isinstance(address, UnixAddress) else [address.host, address.port],
        "key": endpoint.key,
        "state": endpoint.state.value,
        "api": endpoint.api.value,
        "engine": endpoint.engine,
        "request_fields": None if fields is None else fields.document,
        "tokenizer": None if endpoint.tokenizer is None else str(endpoint.tokenizer),
        "role": endpoint.role,
        "has_memory": endpoint.memory is not None,
        "has_latency": endpoint.latency is not None,
    }


def endpoint_of(document: dict[str, Any]) -> WorkerEndpoint:
    """The endpoint from `document_of`; the caller sets `memory` and `latency`."""
    tokenizer = document["tokenizer"]
    endpoint = WorkerEndpoint(
        document["name"], tuple(document["models"]), _address_of(document["address"]), document["key"],
        document["max_num_seqs"], document["max_model_len"], api=Api(document["api"]), engine=document["engine"],
        tokenizer=None if tokenizer is None else Path(tokenizer), role=document["role"],
    )  # fmt: skip
    update(endpoint, document)
    return endpoint


def update(endpoint: WorkerEndpoint, document: dict[str, Any]) -> None:
    """Apply changed fields, the state last: a worker that is ready must be complete."""
    for name in _PLAIN:
        setattr(endpoint, name, document[name])
    endpoint.models, endpoint.adapters = tuple(document["models"]), tuple(document["adapters"])
    fields = document["request_fields"]
    if fields is None or endpoint.request_fields is None or fields != endpoint.request_fields.document:
        endpoint.request_fields = None if fields is None else fields_of(fields)
    if (address := _address_of(document["address"])) != endpoint.address or document["key"] != endpoint.key:
        endpoint.key, endpoint.address = document["key"], address  # a new object: makes the client reconnect
    endpoint.state = WorkerState(document["state"])


def _address_of(written: str | list[Any]) -> UnixAddress | TcpAddress:
    return UnixAddress(Path(written)) if isinstance(written, str) else TcpAddress(*written)
