"""Models with bundled dimensions: configs/models.toml, and the quantized siblings of configs/siblings.toml."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qserve.core import facts
from qserve.planner.packed import packed_base, packing_of
from qserve.planner.siblings import known_config, padded_size, stored_as

__all__ = ["alias_of", "aliases", "bundled_config", "known_ids", "packed_config", "sibling_ids"]


def known_ids() -> tuple[str, ...]:
    """Hub ids with bundled dimensions, in the order of the table: models, then their variants."""
    table = facts.load("models")
    return (*table["models"], *table["variants"])


def sibling_ids() -> tuple[str, ...]:
    """Hub ids of the known models' quantized siblings, in the order of the table."""
    return tuple(one for siblings in facts.load("siblings").values() for one in siblings.values())


def aliases() -> dict[str, tuple[str, str]]:
    """Alias to (hub id, note for the user)."""
    return {name: (row["id"], row["note"]) for name, row in facts.load("models")["aliases"].items()}


def alias_of(name: str) -> tuple[str, str] | None:
    """(hub id, note for the user) of an alias; None for a name that is none."""
    return aliases().get(name)


def bundled_config(model_id: str) -> Mapping[str, Any] | None:
    """The config of a known model, variant or quantized sibling; None for one that is not in the tables."""
    return known_config(model_id) or _sibling_config(model_id)


def packed_config(model_id: str) -> Mapping[str, Any] | None:
    """The config of somebody else's checkpoint whose packing is known; None for another."""
    packing, base = packing_of(model_id), bundled_config(packed_base(model_id) or "")
    return None if packing is None or base is None else {**base, "quantization_config": packing}


def _sibling_config(model_id: str) -> Mapping[str, Any] | None:
    for base_id, siblings in facts.load("siblings").items():
        for scheme, sibling_id in siblings.items():
            stored = stored_as(sibling_id, scheme) if sibling_id == model_id else None
            base = bundled_config(base_id) if stored else None
            if base:
                columns = padded_size(sibling_id)
                padded = {"intermediate_size": columns} if columns else {}
                return {**base, **padded, "quantization_config": stored}
    return None
