"""The models that qserve knows by heart: configs/models.toml and the siblings of configs/siblings.toml."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qserve.core import facts

__all__ = ["alias_of", "bundled_config", "known_ids"]


def known_ids() -> tuple[str, ...]:
    """Hub ids with bundled dimensions of their own, in the order of the table."""
    return tuple(facts.load("models")["models"])


def alias_of(name: str) -> tuple[str, str] | None:
    """(hub id, note for the user) of an alias; None for a name that is none."""
    row = facts.load("models")["aliases"].get(name)
    return (row["id"], row["note"]) if row else None


def bundled_config(model_id: str) -> Mapping[str, Any] | None:
    """The config of a known model; None for one that is not in the tables."""
    models: Mapping[str, Mapping[str, Any]] = facts.load("models")["models"]
    return models.get(model_id)
