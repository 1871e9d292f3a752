"""Hints for our own requests, by their schemas and those of other routes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, TypeVar

from pydantic import BaseModel

from qserve.wire.hints.meant import hint_for
from qserve.wire.hints.names import FieldNames, names_of

__all__ = ["MIXED_UP", "hint_of", "mixed_up_on", "names_by_schema"]

Schema = TypeVar("Schema", bound=BaseModel)

MIXED_UP: dict[str, type[BaseModel]] = {}
"""Routes whose fields are sent to the wrong one of them, each with its schema."""


def mixed_up_on(route: str) -> Callable[[type[Schema]], type[Schema]]:
    """Marks the schema of a route whose fields clients send to others, and theirs to it."""

    def enter(schema: type[Schema]) -> type[Schema]:
        MIXED_UP[route] = schema
        return schema

    return enter


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
    return {route: names_by_schema(schema) for route, schema in MIXED_UP.items()}
