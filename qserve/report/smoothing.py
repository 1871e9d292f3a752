"""A noisy curve as its running mean: what the report, its summary and the web UI draw over single steps."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["FEWEST_TO_SMOOTH", "smoothed"]

FEWEST_TO_SMOOTH = 12
"""Values; a shorter curve is shown as it is."""


def smoothed(values: Sequence[float | None]) -> tuple[float | None, ...]:
    """The mean of what came so far, weights falling with the age: by a tenth of the run to 1/e."""
    kept = 1 - 1 / max(FEWEST_TO_SMOOTH / 2, len(values) / 10)
    found: list[float | None] = []
    total = weight = 0.0
    for value in values:
        if value is not None:
            total, weight = kept * total + value, kept * weight + 1
        found.append(total / weight if value is not None else None)
    return tuple(found)
