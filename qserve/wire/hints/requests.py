"""Hints for requests that our own schemas describe, by these and by the schemas of other routes."""

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
"""Routes that clients mix up, each with its schema: the fields of one are sent to another."""


def mixed_up_on(route: str) -> Callable[[type[Schema]], type[Schema]]:
    """Enters the schema of a route into `MIXED_UP`."""

    def enter(schema: type[Schema]) -> type[Schema]:
        MIXED_UP[route] = schema
        return schema

    return enter


def hint_of(schema: type[BaseModel], path: tuple[str | int, ...]) -> str:
    """What was probably meant by the field at `path`, which a request of this schema does not have."""
    others = {route: names_by_schema(other) for route, other in MIXED_UP.items()}
    return hint_for(path, names_by_schema(schema), others)


@lru_cache(maxsize=64)
def names_by_schema(schema: type[BaseModel]) -> FieldNames:
    """The names of one request. Takes some ten milliseconds, once for each schema."""
    document: Mapping[str, Any] = schema.model_json_schema()
    return names_of(document, document.get("$defs", {}))
