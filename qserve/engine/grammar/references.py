"""Where a reference within a JSON schema leads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["followed", "named_by"]

_MOST_FOLLOWED = 16
_REMARKS = frozenset({"title", "description", "default", "examples", "deprecated", "$comment", "$defs", "definitions"})


def named_by(reference: str, root: Mapping[str, Any]) -> Any:
    """What a reference within the document `root` names; None where it names nothing."""
    if not reference.startswith("#"):
        return None
    found: Any = root
    for part in reference.removeprefix("#").split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def followed(schema: Any, root: Mapping[str, Any]) -> Any:
    """What `schema` stands for: itself, or what it refers to where it says nothing more."""
    for _ in range(_MOST_FOLLOWED):
        if not isinstance(schema, Mapping) or not isinstance(reference := schema.get("$ref"), str):
            return schema
        if schema.keys() - _REMARKS - {"$ref"} or not isinstance(named := named_by(reference, root), Mapping):
            return schema
        schema = named
    return schema
