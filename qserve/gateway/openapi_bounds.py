"""Narrows request schemas to what the models that run now take: token ids, lengths."""

from __future__ import annotations

from typing import Any

from qserve.wire.openai import MAX_TOKEN_ID

__all__ = ["bound_ids", "bound_lengths", "pattern_below"]


def bound_ids(schema: Any, vocab_size: int) -> None:
    """Token ids end before `vocab_size`, wherever they stand; those that are names, too."""
    if isinstance(schema, list):
        for one in schema:
            bound_ids(one, vocab_size)
    elif isinstance(schema, dict):
        if schema.get("maximum") == MAX_TOKEN_ID:
            schema["maximum"] = vocab_size - 1
        if "propertyNames" in schema:
            schema["propertyNames"] = {"pattern": pattern_below(vocab_size)}
        for one in schema.values():
            bound_ids(one, vocab_size)


def bound_lengths(schema: dict[str, Any], max_model_len: int) -> None:
    """A prompt has a token at least, and so has an answer."""
    for name in ("max_tokens", "max_completion_tokens"):
        for one in schema["properties"].get(name, {}).get("anyOf", ()):
            if one.get("type") == "integer":
                one["maximum"] = max_model_len - 1
    for one in schema["properties"].get("prompt", {}).get("anyOf", ()):
        for ids in (one, one.get("items", {})):
            if ids.get("items", {}).get("type") == "integer":
                ids["maxItems"] = max_model_len - 1


def pattern_below(end: int) -> str:
    """A regular expression for the decimal numbers from 0 to `end` - 1, zeros before them allowed.

    >>> pattern_below(123)
    '^0*([0-9]{1,2}|1[0-1][0-9]|12[0-2])$'
    """
    last = str(end - 1)
    ways = [f"[0-9]{{1,{len(last) - 1}}}"] if len(last) > 1 else []
    for place, digit in enumerate(last):
        least, most = int(place == 0 and len(last) > 1), int(digit) - (place < len(last) - 1)
        if least <= most:
            rest = len(last) - place - 1
            choice = str(least) if least == most else f"[{least}-{most}]"
            ways.append(last[:place] + choice + ("" if not rest else "[0-9]" if rest == 1 else f"[0-9]{{{rest}}}"))
    return f"^0*({'|'.join(ways)})$"
