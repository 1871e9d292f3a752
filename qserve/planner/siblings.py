"""Relatives of a model: quantized siblings (configs/siblings.toml, checkpoints.toml), smaller ones (models.toml)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from qserve.core import facts
from qserve.core.schemes import SCHEMES
from qserve.planner.packed import packed_base, packed_checkpoints, packing_of

__all__ = ["base_of", "known_config", "padded_size", "sibling_of", "smaller_ids", "stored_as"]

# Of a name's family, size and kind (Qwen3-, 30B-A3B, -Instruct-2507) the size; of experts with what is active of them.
_SIZE = re.compile(r"\d{1,4}(\.\d{1,4})?B(-A\d{1,4}(\.\d{1,4})?B)?")
_GENERATION = re.compile(r"[A-Za-z]+\d\.")  # Qwen3. of Qwen3.5-


def sibling_of(model_id: str, scheme: str, *, of_others: bool = True) -> str | None:
    """The checkpoint that holds `model_id` in `scheme`: the one of siblings.toml, else, with `of_others`, another whose
    layout is known.

    None where there is none.
    """
    sibling: str | None = facts.load("siblings").get(model_id, {}).get(scheme)
    if sibling is not None or not of_others:
        return sibling
    others = (one for one, stored in packed_checkpoints(model_id).items() if stored == scheme)
    return next((one for one in others if packing_of(one) is not None), None)


def stored_as(sibling_id: str, scheme: str) -> Mapping[str, Any] | None:
    """The quantization_config of a sibling in `scheme`: its own where a table has it, else what most such checkpoints
    have; None where it is not known.
    """
    own: Mapping[str, Any] | None = facts.load("models")["stored"].get(sibling_id)
    return own or packing_of(sibling_id) or SCHEMES[scheme].config


def base_of(sibling_id: str) -> str | None:
    """The 16-bit model that `sibling_id` was quantized from; None where it is in no table."""
    siblings = facts.load("siblings").items()
    return next((base for base, row in siblings if sibling_id in row.values()), packed_base(sibling_id))


def padded_size(sibling_id: str) -> int | None:
    """The intermediate_size of a sibling that was padded before it was quantized; None for all others."""
    size: int | None = facts.load("models")["padded"].get(sibling_id)
    return size


def known_config(model_id: str) -> Mapping[str, Any] | None:
    """The config of a model or variant of configs/models.toml; None for another."""
    table = facts.load("models")
    if model_id in table["models"]:
        config: Mapping[str, Any] = table["models"][model_id]
        return config
    if model_id not in table["variants"]:
        return None
    row = table["variants"][model_id]
    base = known_config(row["same_as"]) or {}
    return {**base, **{key: value for key, value in row.items() if key != "same_as"}}


def smaller_ids(model_id: str) -> list[str]:
    """Models of the same family and kind, by their names: Qwen3-14B of Qwen3-32B-AWQ; some are no smaller.

    Where the family has one size only, those of its generation: Qwen3.5-9B of Qwen3.8-27B.
    """
    table = facts.load("models")
    known = [*table["models"], *table["variants"]]
    mine = _parts(base_of(model_id) or model_id)
    if mine is None:
        return []
    family, size, kind = mine
    others = [(one, parts) for one in known if (parts := _parts(one)) is not None and parts[1:] != (size, kind)]
    alike = [one for one, parts in others if (parts[0], parts[2]) == (family, kind)]
    generation = _GENERATION.match(family)
    if alike or generation is None:
        return alike
    return [one for one, parts in others if parts[0].startswith(generation[0]) and parts[2] == kind]


def _parts(model_id: str) -> tuple[str, str, str] | None:
    """Family, size and kind of a name, without its owner."""
    name = model_id.rpartition("/")[2]
    size = _SIZE.search(name)
    return None if size is None else (name[: size.start()], size[0], name[size.end() :])
