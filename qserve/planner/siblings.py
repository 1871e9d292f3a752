"""Quantized siblings of a model, and the base model of a quantized checkpoint: configs/siblings.toml."""

from __future__ import annotations

from qserve.core import facts

__all__ = ["base_of", "padded_size", "sibling_of"]


def sibling_of(model_id: str, scheme: str) -> str | None:
    """The checkpoint that holds `model_id` in `scheme`; None where there is none."""
    sibling: str | None = facts.load("siblings").get(model_id, {}).get(scheme)
    return sibling


def base_of(sibling_id: str) -> str | None:
    """The 16-bit model that `sibling_id` was quantized from; None where it is not in the table."""
    return next((base for base, row in facts.load("siblings").items() if sibling_id in row.values()), None)


def padded_size(sibling_id: str) -> int | None:
    """The intermediate_size of a sibling that was padded before it was quantized; None for all others."""
    size: int | None = facts.load("models")["padded"].get(sibling_id)
    return size
