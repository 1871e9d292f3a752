"""Packed checkpoints of known models by others than Qwen: how they store their weights (configs/checkpoints.toml)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qserve.core import facts
from qserve.core.quantization_config import read_quantization

__all__ = ["packed_base", "packed_checkpoints", "packing_of", "packings_of"]


def packed_base(model_id: str) -> str | None:
    """The 16-bit model that a checkpoint of the table is made from; None for another id."""
    base: str | None = facts.load("checkpoints")["checkpoints"].get(model_id, {}).get("base")
    return base


def packings_of(model_id: str) -> tuple[tuple[str, Mapping[str, Any]], ...]:
    """(how it is packed in words, its quantization_config) of every known revision; none where only its id is known."""
    table = facts.load("checkpoints")
    row = table["checkpoints"].get(model_id, {})
    names = row.get("packings") or ([row["packing"]] if "packing" in row else [])
    return tuple((str(table["packings"][name].get("words", "")), _config(table["packings"][name])) for name in names)


def packing_of(model_id: str) -> Mapping[str, Any] | None:
    """The quantization_config of a checkpoint whose layout is known; None where it is not, or changed by revision."""
    found = packings_of(model_id)
    return found[0][1] if len(found) == 1 else None


def packed_checkpoints(base_id: str) -> dict[str, str]:
    """Hub id to scheme of all checkpoints of a 16-bit model: those whose layout is known first."""
    table = facts.load("checkpoints")["checkpoints"]
    ids = sorted((one for one, row in table.items() if row["base"] == base_id), key=lambda one: "scheme" in table[one])
    return {one: table[one].get("scheme") or _scheme(one) for one in ids}


def _scheme(model_id: str) -> str:
    stored = read_quantization(packings_of(model_id)[0][1], model_id)
    assert stored is not None, "each row has a quantization_config"
    return stored.scheme


def _config(packing: Mapping[str, Any]) -> Mapping[str, Any]:
    return {key: value for key, value in packing.items() if key != "words"}
