"""Hints for our own requests, by their schemas and those of other routes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from pydantic import BaseModel

from qserve.wire.dialects.messages import MessagesRequest
from qserve.wire.dialects.responses import ResponsesRequest
from qserve.wire.hints.meant import hint_for
from qserve.wire.hints.names import FieldNames, names_of
from qserve.wire.openai import ChatCompletionRequest, CompletionRequest

__all__ = ["OTHERS", "hint_of", "names_by_schema"]

OTHERS: Mapping[str, type[BaseModel]] = {
    "/v1/chat/completions": ChatCompletionRequest,
    "/v1/completions": CompletionRequest,
    "/v1/responses": ResponsesRequest,
    "/v1/messages": MessagesRequest,
}
"""Routes whose fields are sent to the wrong one of them."""


def hint_of(schema: type[BaseModel], path: tuple[str | int, ...]) -> str:
    """What was probably meant by the field at `path`, which a request of this schema does not have."""
    return hint_for(path, names_by_schema(schema), names_by_route())


@lru_cache(maxsize=64)
def names_by_schema(schema: type[BaseModel]) -> FieldNames:
    """The names of one request; some ten milliseconds, once."""
    document: Mapping[str, Any] = schema.model_json_schema()
    return names_of(document, document.get("$defs", {}))


def names_by_route() -> dict[str, FieldNames]:
    """Of the routes that generate."""
    return {route: names_by_schema(schema) for route, schema in OTHERS.items()}
