"""The Pareto chart of layouts: tokens/s per user against tokens/s per card, for a wide and for a narrow place.

Text and lines take the colour of the page around it, so that it is readable on light and on dark ground. Of the two
drawings the page's stylesheet shows one (`.layouts-chart`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from qserve.report.charts.labels import Box, overlap
from qserve.report.charts.scale import ticks
from qserve.report.charts.specs import LayoutPoint, Layouts

__all__ = ["draw_layouts", "layout_points"]

_LEFT, _RIGHT, _BOTTOM = 64, 24, 52
_LEGEND_LINE = 20
_FRONT, _BEHIND = "#4a78c9", "#8b95a5"
_ROOM = 1.12
"""Beyond the largest value, for its name."""
_CHARACTER_WIDTH, _NAME_HEIGHT = 6.7, 15.0
_STROKE_STEP = 4
_BESIDE, _ABOVE, _LEVEL, _BELOW = 12, -11, 4, 21
_FURTHER = ((-4, 37), (-100, 37), (-4, -27))
"""Of a name, from its point: to a side, and the baseline of one above it, level with it and below it; of the chosen
layout, whose ring tells which it is, also a line further."""
_BOTH = Markup('<div class="layouts-chart">{}{}</div>')
_SVG = Markup(
    '<svg xmlns="http://www.w3.org/2000/svg" class="{kind}" viewBox="0 0 {w} {h}" width="100%" '
    'style="max-width:{w}px" font-family="system-ui, sans-serif" font-size="12" fill="currentColor" '
    'role="img" aria-label="{title}">{inside}</svg>'
)
_LINE = Markup('<path d="M{:.1f} {:.1f}L{:.1f} {:.1f}" stroke="currentColor" stroke-opacity="0.15"/>')
_TEXT = Markup('<text x="{:.1f}" y="{:.1f}" text-anchor="{}" fill-opacity="{}"{}>{}</text>')
_JOINED = Markup('<polyline fill="none" stroke="{}" stroke-opacity="0.45" stroke-width="2.5" points="{}"/>')
_POINT = Markup(
    '<circle cx="{:.1f}" cy="{:.1f}" r="{}" fill="{}" stroke="{}" stroke-width="2"><title>{}</title></circle>'
)
_KEYS = (
    (_FRONT, "none", 5, "no layout is better in both"),
    (_BEHIND, "none", 5, "another is better in both"),
    ("none", "currentColor", 7, "chosen for this load"),
)
_NAME, _BOLD = Markup(' class="name"'), Markup(' class="name" font-weight="600"')
_TURNED = Markup(' transform="rotate(-90 16 {:.0f})"')


def layout_points(alternatives: Sequence[Mapping[str, Any]]) -> tuple[LayoutPoint, ...]:
    """From the rows under `speed.alternatives` of a plan."""
    return tuple(
        LayoutPoint(
            f"{row['layout']} ({row['cards']} card{'s' * (row['cards'] != 1)})",
            row["tokens_per_s_per_user"],
            row["tokens_per_s_per_card"],
            row["pareto"],
            row["chosen"],
        )
        for row in alternatives
    )


@dataclass(frozen=True)
class _Canvas:
    """The size of a drawing, and where each entry of its legend begins."""

    kind: str
    width: int
    height: int
    keys: tuple[tuple[float, float], ...]

    @property
    def top(self) -> float:
        return self.keys[-1][1] + 24

    @property
    def right(self) -> float:
        return self.width - _RIGHT

    @property
    def bottom(self) -> float:
        return self.height - _BOTTOM


_WIDE = _Canvas("wide", 680, 360, ((_LEFT + 5, 10), (_LEFT + 205, 10), (_LEFT + 392, 10)))
_NARROW = _Canvas("narrow", 350, 360, tuple((_LEFT + 5, 10 + _LEGEND_LINE * line) for line in range(len(_KEYS))))


def draw_layouts(chart: Layouts) -> Markup:
    """Layouts that no other beats in both are joined and named where there is room; the chosen one has a ring."""
    return _BOTH.format(_draw(chart, _WIDE), _draw(chart, _NARROW))


def _draw(chart: Layouts, canvas: _Canvas) -> Markup:
    marks_x = ticks(_ROOM * max(point.per_user for point in chart.points), 6 if canvas is _WIDE else 4)
    marks_y = ticks(_ROOM * max(point.per_card for point in chart.points), 5)

    def place(point: LayoutPoint) -> tuple[float, float]:
        x = _LEFT + (canvas.right - _LEFT) * point.per_user / marks_x[-1]
        return x, canvas.bottom - (canvas.bottom - canvas.top) * point.per_card / marks_y[-1]

    front = [place(one) for one in sorted(chart.points, key=lambda point: point.per_user) if one.is_front]
    joined = " ".join("{:.1f},{:.1f}".format(*one) for one in front)
    parts = [
        *_axes(marks_x, marks_y, chart, canvas),
        _JOINED.format(_FRONT, joined),
        *(_drawn(point, *place(point)) for point in sorted(chart.points, key=lambda point: point.is_front)),
        *_names([(point, *place(point)) for point in chart.points], front, canvas),
        *_legend(canvas),
    ]
    title = f"{chart.y_title} over {chart.x_title}"
    return _SVG.format(kind=canvas.kind, w=canvas.width, h=canvas.height, title=title, inside=Markup().join(parts))


def _axes(marks_x: Sequence[float], marks_y: Sequence[float], chart: Layouts, canvas: _Canvas) -> Iterator[Markup]:
    right, bottom = canvas.right, canvas.bottom
    for mark in marks_y:
        y = bottom - (bottom - canvas.top) * mark / marks_y[-1]
        yield _LINE.format(_LEFT, y, right, y)
        yield _TEXT.format(_LEFT - 8, y + 4, "end", 0.75, "", f"{mark:,g}")
    for mark in marks_x:
        x = _LEFT + (right - _LEFT) * mark / marks_x[-1]
        yield _TEXT.format(x, bottom + 18, "middle", 0.75, "", f"{mark:,g}")
    middle = (canvas.top + bottom) / 2
    yield _TEXT.format((_LEFT + right) / 2, canvas.height - 12, "middle", 0.75, "", chart.x_title)
    yield _TEXT.format(16, middle, "middle", 0.75, _TURNED.format(middle), chart.y_title)


def _drawn(point: LayoutPoint, x: float, y: float) -> Markup:
    label = f"{point.name}: {point.per_user:,.1f} tokens/s a user, {point.per_card:,.0f} tokens/s a card"
    colour = _FRONT if point.is_front else _BEHIND
    ring = "currentColor" if point.is_chosen else "none"
    return _POINT.format(x, y, 8 if point.is_chosen else 5, colour, ring, label)


def _legend(canvas: _Canvas) -> Iterator[Markup]:
    for (x, y), (colour, ring, radius, words) in zip(canvas.keys, _KEYS, strict=True):
        yield _POINT.format(x, y, radius, colour, ring, words)
        yield _TEXT.format(x + 12, y + 4, "start", 0.75, "", words)


def _names(
    points: Sequence[tuple[LayoutPoint, float, float]], front: Sequence[tuple[float, float]], canvas: _Canvas
) -> Iterator[Markup]:
    """Names of the chosen layout and of the front, each next to its point where it covers no point, no other name and
    nothing of the line, else left out.

    The chosen one is always named; the two ends of the front come next.
    """
    taken = [(x - 7, y - 7, x + 7, y + 7) for _, x, y in points]
    line = [one for pair in itertools.pairwise(front) for one in _along(*pair)]
    named = [one for one in points if one[0].is_front or one[0].is_chosen]
    ends = {pick(points, key=lambda one: one[0].per_user)[0] for pick in (min, max)} if points else set()
    for point, x, y in sorted(named, key=lambda one: (not one[0].is_chosen, one[0] not in ends, one[1])):
        inside = [box for box in _places(point, x, y) if _is_inside(box, canvas)] or list(_places(point, x, y))[:1]
        covers = [sum(overlap(box, other) for other in taken) for box in inside]
        crosses = [any(_holds(box, *one) for one in line) for box in inside]
        covered, crossed, box = min(zip(covers, crosses, inside, strict=True), key=lambda one: one[:2])
        if not (covered or crossed) or point.is_chosen:
            taken.append(box)
            yield _TEXT.format(box[0], box[3] - 4, "start", 1, _BOLD if point.is_chosen else _NAME, point.name)


def _places(point: LayoutPoint, x: float, y: float) -> Iterator[Box]:
    """Around the point, best first: a front falls to the right, so that above it and to the right there is room."""
    width = _CHARACTER_WIDTH * len(point.name)
    for left, baseline in (
        (-4, _ABOVE),
        (_BESIDE, _LEVEL),
        (4 - width, _BELOW),
        (-_BESIDE - width, _LEVEL),
        (4 - width, _ABOVE),
        (-4, _BELOW),
        (-width / 2, _ABOVE),
        (-width / 2, _BELOW),
        *_FURTHER * point.is_chosen,
    ):
        yield x + left, y + baseline + 4 - _NAME_HEIGHT, x + left + width, y + baseline + 4


def _along(start: tuple[float, float], end: tuple[float, float]) -> Iterator[tuple[float, float]]:
    """Points of a stroke, some pixels apart."""
    steps = max(1, math.ceil(math.dist(start, end) / _STROKE_STEP))
    for step in range(steps + 1):
        yield tuple(a + (b - a) * step / steps for a, b in zip(start, end, strict=True))  # type: ignore[misc]


def _is_inside(box: Box, canvas: _Canvas) -> bool:
    return box[0] >= _LEFT and box[1] >= canvas.top - 8 and box[2] <= canvas.width and box[3] <= canvas.bottom


def _holds(box: Box, x: float, y: float) -> bool:
    return box[0] < x < box[2] and box[1] < y < box[3]
