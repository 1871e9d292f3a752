"""What the keywords of a JSON schema hold: schemas, data, remarks, and references to other places of the document."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["BY_NAME", "DATA", "REMARKS", "followed", "named_by", "with_inner", "within"]

_MOST_FOLLOWED = 16
DATA = ("const", "enum", "default", "examples")
"""Their values are data: nothing in them is a keyword."""
BY_NAME = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
"""Their values are schemas by name: the names are no keywords."""
REMARKS = frozenset({"title", "description", "default", "examples", "deprecated", "$comment", "$defs", "definitions"})


def named_by(reference: str, root: Mapping[str, Any]) -> Any:
    """What a reference within the document `root` names; None where it names nothing."""
    if not reference.startswith("#"):
        return None
    found: Any = root
    for part in reference.removeprefix("#").split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def with_inner(name: str, value: Any, changed: Callable[[Any], Any]) -> Any:
    """The value of the keyword `name`, with `changed` of each schema that it holds; a list of them is one argument."""
    if name in DATA:
        return value
    if name in BY_NAME and isinstance(value, Mapping):
        return {key: changed(one) for key, one in value.items()}
    return changed(value)


def followed(schema: Any, root: Mapping[str, Any]) -> Any:
    """What `schema` stands for: itself, or what it refers to where it says nothing more."""
    for _ in range(_MOST_FOLLOWED):
        if not isinstance(schema, Mapping) or not isinstance(reference := schema.get("$ref"), str):
            return schema
        if schema.keys() - REMARKS - {"$ref"} or not isinstance(named := named_by(reference, root), Mapping):
            return schema
        schema = named
    return schema


def within(schema: Any, document: Mapping[str, Any]) -> Any:
    """A schema of its own from a part of `document`, which it may refer to."""
    if not isinstance(schema, dict) or '"$ref"' not in json.dumps(schema):
        return schema if isinstance(schema, dict) else {"anyOf": [schema]}
    return {**_moved(schema), "$defs": {"document": _moved(document)}}


def _moved(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_moved(one) for one in schema]
    if not isinstance(schema, Mapping):
        return schema
    return {
        name: f"#/$defs/document{value[1:]}"
        if name == "$ref" and isinstance(value, str) and value.startswith("#")
        else _moved(value)
        for name, value in schema.items()
    }
