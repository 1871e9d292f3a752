"""Chart specifications."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = [
    "Bar",
    "Bars",
    "Chart",
    "Colour",
    "Histogram",
    "HistogramSeries",
    "Interval",
    "Intervals",
    "LayoutPoint",
    "Layouts",
    "Line",
    "Lines",
    "Point",
    "Points",
    "Segment",
]

Colour = Literal["1", "2", "3", "4", "5", "6", "7", "8", "free"]
"""A place in the page's palette."""


@dataclass(frozen=True)
class Segment:
    """A part of a bar; `text` is its value for people."""

    name: str
    value: float
    text: str
    colour: Colour


@dataclass(frozen=True)
class Bar:
    """One bar with its label and, at its end, a remark."""

    label: str
    segments: tuple[Segment, ...]
    remark: str = ""


@dataclass(frozen=True)
class Bars:
    """Bars that lie one below the other on one scale from 0 to `maximum`."""

    bars: tuple[Bar, ...]
    maximum: float


@dataclass(frozen=True)
class Line:
    """One line; None is a gap. `is_faint`: thin and pale, behind one that tells more."""

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
    """

    at: tuple[float, ...]
    lines: tuple[Line, ...]
    kind: Literal["count", "number", "ms", "rate", "bytes", "share"]
    step: float
    counts: str = ""


@dataclass(frozen=True)
class HistogramSeries:
    """`counts` of equal bins that begin at 0; `num_beyond` lie above the last."""

    name: str
    colour: Colour
    counts: tuple[int, ...]
    num_beyond: int


@dataclass(frozen=True)
class Histogram:
    """How many values lie where, in bins of `bin_ms`."""

    bin_ms: float
    series: HistogramSeries
    marks: tuple[tuple[str, float], ...] = ()
    """Names and places in ms of lines across it: p50, p99."""


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
    kind: Literal["share", "number"]


@dataclass(frozen=True)
class Point:
    """`size` from 0 to 1; `is_front`: no other is better in x and y at once."""

    label: str
    x: float
    y: float
    stderr: float
    size: float
    is_front: bool
    text: str


@dataclass(frozen=True)
class Points:
    """y over x, with the best of them joined."""

    points: tuple[Point, ...]
    x_title: str
    y_title: str


@dataclass(frozen=True)
class LayoutPoint:
    """One way to serve a load: tokens a second of one user and of one card. `is_front`: none is better in both."""

    name: str
    per_user: float
    per_card: float
    is_front: bool
    is_chosen: bool


@dataclass(frozen=True)
class Layouts:
    """What each layout gives a user, and what it makes of a card."""

    points: tuple[LayoutPoint, ...]
    x_title: str = "tokens/s of one user"
    y_title: str = "tokens/s of one card"


Chart = Bars | Lines | Histogram | Intervals | Points | Layouts
