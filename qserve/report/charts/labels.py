"""Where the names of points lie, so that none covers another."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = ["Box", "least_covering", "overlap"]

Box = tuple[float, float, float, float]
"""Left, top, right and bottom."""


def overlap(one: Box, other: Box) -> bool:
    """Whether they share more than an edge."""
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def least_covering(places: Iterable[Box], taken: Sequence[Box]) -> tuple[int, Box]:
    """Of `places`, the best first, the number and the box of the first that covers fewest of `taken`."""
    covers = [(sum(overlap(box, other) for other in taken), number, box) for number, box in enumerate(places)]
    _, number, box = min(covers)
    return number, box
