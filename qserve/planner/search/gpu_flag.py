"""What --gpu takes for a card, so that a printed command plans the same card again."""

from __future__ import annotations

from dataclasses import replace

from qserve.core.hardware import Device, known_gpus, parse_gpu

__all__ = ["gpu_flag"]


def gpu_flag(device: Device, count: int = 1) -> str:
    """`count` of the card: its name, or where it is not as in the table (another size, memory that others hold) its
    description. Not quoted: a name may have spaces."""
    card = replace(device, uuid="", kept_free_bytes=0)
    name = next((key for key, known in known_gpus().items() if known == card), None)
    if name is not None:
        return f"{name}:{count}" if count > 1 else name
    found = _described(card, None)
    alike = next((key for key, known in known_gpus().items() if known.name == card.known_as), None)
    # What others hold may be more than there is, where a reward model does not fit: --gpu does not take that.
    free = replace(card, used_by_others_bytes=0)
    if alike is not None and (card.compute_capability is None or parse_gpu(_described(free, None)) != (free,)):
        found = _described(card, alike)
    return f"{found},count={count}" if count > 1 else found


def _described(card: Device, like: str | None) -> str:
    capability = card.compute_capability
    parts = {
        "like": like,
        "memory": str(card.total_bytes),
        "sm": str(card.sm_count) if card.sm_count else None,
        "bandwidth": str(card.bandwidth_bytes_per_s) if card.bandwidth_bytes_per_s else None,
        "cc": f"{capability[0]}.{capability[1]}" if capability else None,
        "used": str(card.used_by_others_bytes) if card.used_by_others_bytes else None,
        "name": card.name if "," not in card.name and not (like and card.name == card.known_as) else None,
    }
    return ",".join(f"{key}={value}" for key, value in parts.items() if value is not None)
