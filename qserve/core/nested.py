"""Where a config.json says what: those of models that read images or audio nest the language model's part."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = [
    "in_text_config",
    "parts_config",
    "quantization_config",
    "text_config",
    "text_keys",
    "with_keys",
    "with_text_config",
]

_THINKER = "thinker_config"
_TEXT = "text_config"


def parts_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part that names language model and encoders: of a model that also speaks its thinker, else all."""
    nested = config.get(_THINKER)
    return nested if isinstance(nested, Mapping) else config


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The language model's part: the `text_config` of one that has other parts."""
    parts = parts_config(config)
    nested = parts.get(_TEXT)
    return nested if isinstance(nested, Mapping) else parts


def quantization_config(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """How the weights are packed, in whichever part that stands; None of those in 16 bit."""
    found = (part.get("quantization_config") for part in (config, parts_config(config), text_config(config)))
    return next((one for one in found if isinstance(one, Mapping) and one), None)


def text_keys(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Overriding keys as the language model's own, wherever they were written."""
    flat = {**keys, **parts_config(keys)}
    nested = flat.get(_TEXT)
    own = {name: value for name, value in flat.items() if name not in (_TEXT, _THINKER)}
    return {**own, **(nested if isinstance(nested, Mapping) else {})}


def with_text_config(config: Mapping[str, Any], text: Mapping[str, Any]) -> Mapping[str, Any]:
    """`config` with `text` in place of the language model's part."""
    parts = parts_config(config)
    own = {**parts, _TEXT: text} if isinstance(parts.get(_TEXT), Mapping) else text
    return own if parts is config else {**config, _THINKER: own}


def with_keys(config: Mapping[str, Any], keys: Mapping[str, Any]) -> Mapping[str, Any]:
    """`config` with `keys` in every part that may say them of the language model."""
    nested = with_text_config(config, {**text_config(config), **keys})
    parts = parts_config(nested)
    return {**nested, **keys} if parts is nested else {**nested, _THINKER: {**parts, **keys}}


def in_text_config(config: Mapping[str, Any], keys: Mapping[str, Any]) -> dict[str, Any]:
    """`keys` of the language model, nested as `config` nests it."""
    parts = parts_config(config)
    own = {_TEXT: dict(keys)} if isinstance(parts.get(_TEXT), Mapping) else dict(keys)
    return own if parts is config else {_THINKER: own}
