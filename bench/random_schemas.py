"""Random JSON schemas that an answer can follow, of the keywords that clients use."""

from __future__ import annotations

from random import Random
from typing import Any

__all__ = ["random_schemas"]

_WORDS = ("name", "age", "tags", "größe", "a b", "is_ok", 'q"uote', "Δ")


def random_schemas(rng: Random, number: int) -> list[dict[str, Any]]:
    """`number` of them, the same for the same state of `rng`; each has a definition that it may refer to."""
    leaf = {"leaf": {"type": "integer", "minimum": 0, "maximum": 9}}
    return [{"$defs": leaf, **_schema(rng)} for _ in range(number)]


def _schema(rng: Random, depth: int = 0) -> dict[str, Any]:
    kinds = ["string", "integer", "number", "boolean", "null", "enum", "const", "pattern", "format"]
    kind = rng.choice(kinds if depth > 2 else [*kinds, *(["object", "array", "anyOf", "$ref"] * 2)])
    if kind == "object":
        names = rng.sample(_WORDS, rng.randint(0, 4))
        required = [name for name in names if rng.random() < 0.6]
        schema: dict[str, Any] = {"type": "object", "properties": {name: _schema(rng, depth + 1) for name in names}}
        return {**schema, **({"required": required} if required else {}), **_sometimes(rng, additionalProperties=False)}
    if kind == "array":
        least = rng.randint(0, 2)
        return {"type": "array", "items": _schema(rng, depth + 1), "minItems": least, "maxItems": least + 2}
    if kind == "anyOf":
        return {"anyOf": [_schema(rng, depth + 1) for _ in range(2)], **_sometimes(rng, title="T", default=1)}
    return _leaf(rng, kind)


def _leaf(rng: Random, kind: str) -> dict[str, Any]:
    low = rng.randint(-50, 50)
    leaves: dict[str, dict[str, Any]] = {
        "string": {"type": "string", "minLength": rng.randint(0, 3), "maxLength": 5, **_sometimes(rng, format="color")},
        "integer": {"type": "integer", "minimum": low, "maximum": low + rng.randint(0, 300)},
        "number": {"type": "number", **_sometimes(rng, minimum=low, maximum=low + 10)},
        "enum": {"enum": rng.sample(["a", "b\n", 3, None, True, "ü", {"x": 1}], 3)},
        "const": {"const": rng.choice(["fixed", 7, [1, 2], {"k": "v"}])},
        "pattern": {"type": "string", "pattern": rng.choice(["^[a-c]{2,4}$", "^x+y$", "^(ab|cd)[0-9]$"])},
        "format": {"type": "string", "format": rng.choice(["date", "uuid", "ipv4", "time"])},
        "$ref": {"$ref": "#/$defs/leaf"},
    }
    return leaves.get(kind, {"type": kind})


def _sometimes(rng: Random, **keywords: Any) -> dict[str, Any]:
    return keywords if rng.random() < 0.4 else {}
