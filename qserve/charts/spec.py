"""What a chart shows, whatever draws it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

__all__ = [
    "TERM_COLOURS",
    "Bar",
    "Chart",
    "Colour",
    "Histogram",
    "Interval",
    "Intervals",
    "Line",
    "Lines",
    "Point",
    "Scatter",
    "Segment",
    "SignedBars",
    "StackedBars",
    "is_beaten",
]

Colour = Literal["1", "2", "3", "4", "5", "6", "7", "8", "free", "others", "good", "bad", "pale"]
"""A place in the palette of the medium."""
TERM_COLOURS: Mapping[str, Colour] = {
    "weights": "1",
    "kv_cache": "2",
    "activations": "3",
    "cuda_graphs": "4",
    "runtime": "5",
    "optimizer": "6",
    "gradients": "7",
    "gathered": "8",
    "used_by_others": "others",
}
"""Of the parts of memory, the same wherever it is drawn."""


@dataclass(frozen=True)
class Segment:
    """A part of a bar; `text` is its value for people."""

    name: str
    value: float
    text: str
    colour: Colour


@dataclass(frozen=True)
class Bar:
    """One bar with its label and, at its end, a remark.

    `total`: what its whole width stands for; what exceeds it is hatched. None: the scale of the chart.
    """

    label: str
    segments: tuple[Segment, ...]
    remark: str = ""
    total: float | None = None

    @property
    def length(self) -> float:
        return sum(segment.value for segment in self.segments)


@dataclass(frozen=True)
class StackedBars:
    """Bars that lie one below the other on one scale from 0 to `maximum`; None: to the end of the longest."""

    bars: tuple[Bar, ...]
    maximum: float | None = None


@dataclass(frozen=True)
class SignedBars:
    """A bar from zero for each name and value, to the left where it is negative, on a scale from `low` to `high`."""

    values: tuple[tuple[str, float], ...]
    best: int
    low: float
    high: float


@dataclass(frozen=True)
class Line:
    """One line; None is a gap. `is_faint`: thin and pale, behind one that tells more. No name: not in the legend."""

    name: str
    colour: Colour
    values: tuple[float | None, ...]
    is_faint: bool = False


@dataclass(frozen=True)
class Lines:
    """Values over time (`at`, ascending seconds since 1970), of the kind that `figures.text_of` knows.

    Attributes:
        step: the usual distance of two values; those that are further apart are not joined.
        counts: what `at` counts where it is no time: steps.
        begins_at_zero: whether the scale does; else it begins near the lowest value.
        text: makes text of a value, instead of `kind`.
    """

    at: tuple[float, ...]
    lines: tuple[Line, ...]
    kind: Literal["count", "number", "ms", "rate", "bytes", "share"]
    step: float = math.inf
    counts: str = ""
    begins_at_zero: bool = True
    text: Callable[[float], str] | None = None


@dataclass(frozen=True)
class Histogram:
    """Columns of one width, each between two of `edges` (one more than `counts`).

    Attributes:
        counted: what the columns count.
        marks: names and places of lines across it (p50, p99), places in shares of the width.
        labels: places in shares of the width, and their texts; empty: some of the edges.
        num_bad: so many columns from the left are in the colour of what is bad.
    """

    edges: tuple[str, ...]
    counts: tuple[float, ...]
    colour: Colour
    counted: str = ""
    marks: tuple[tuple[str, float], ...] = ()
    labels: tuple[tuple[float, str], ...] = ()
    num_bad: int = 0


@dataclass(frozen=True)
class Interval:
    """A value with its standard error (0: not known)."""

    label: str
    value: float
    stderr: float
    text: str


@dataclass(frozen=True)
class Intervals:
    """Values on one scale from `low` to `high`, a row each."""

    rows: tuple[Interval, ...]
    low: float
    high: float


@dataclass(frozen=True)
class Point:
    """`is_front`: no other is better in x and y at once. `size`: from 0 to 1, its area; None: all are alike."""

    label: str
    x: float
    y: float
    is_front: bool
    is_chosen: bool = False
    text: str = ""
    stderr: float = 0.0
    size: float | None = None


@dataclass(frozen=True)
class Scatter:
    """y over x, with the best of them (the Pareto front) joined.

    Attributes:
        keys: what a point of the front, a beaten and (where one is) the chosen point are.
        remark: said below the legend.
        names_all: whether each point has its name; else the front and the chosen one have, where there is room.
    """

    points: tuple[Point, ...]
    x_title: str
    y_title: str
    x_kind: Literal["bytes", "number"]
    y_kind: Literal["share", "number"]
    keys: tuple[str, ...] = ("no point is better in both", "another is better in both")
    remark: str = ""
    names_all: bool = False


Chart = StackedBars | SignedBars | Lines | Histogram | Intervals | Scatter


def is_beaten(one: tuple[float, float], others: Sequence[tuple[float, float]]) -> bool:
    """Of pairs (cost, gain): whether another costs no more, gains no less and differs."""
    return any(other[0] <= one[0] and other[1] >= one[1] and other != one for other in others)
