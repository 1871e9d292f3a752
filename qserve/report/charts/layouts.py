"""The Pareto chart of layouts: tokens/s per user against tokens/s per card, for a wide and for a narrow place.

Text and lines take the colour of the page around it, so that it stands on light and on dark ground. Of the two drawings
the page's stylesheet shows one (`.layouts-chart`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from qserve.report.charts.scale import ticks
from qserve.report.charts.specs import LayoutPoint, Layouts

__all__ = ["draw_layouts", "layout_points"]

_LEFT, _RIGHT, _BOTTOM = 64, 24, 52
_LEGEND_LINE = 20
_FRONT, _BEHIND = "#4a78c9", "#8b95a5"
_ROOM = 1.12
"""Beyond the largest value, for its name."""
_CHARACTER_WIDTH, _NAME_HEIGHT = 6.7, 15.0
_BASELINES = (-11, 21, -26, 36)
"""Of a name, from its point: above it, below it, and one line further."""
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
_BOLD, _TURNED = Markup(' font-weight="600"'), Markup(' transform="rotate(-90 16 {:.0f})"')


def layout_points(alternatives: Sequence[Mapping[str, Any]]) -> tuple[LayoutPoint, ...]:
    """From the rows under `speed.alternatives` of a plan."""
    return tuple(
        LayoutPoint(
            f"{row['layout']} ({row['cards']} card{'s' * (row['cards'] != 1)})",
            row["tokens_per_s_per_user"], row["tokens_per_s_per_card"], row["pareto"], row["chosen"],
        )
        for row in alternatives
    )  # fmt: skip


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

    front = sorted((point for point in chart.points if point.is_front), key=lambda point: point.per_user)
    joined = " ".join("{:.1f},{:.1f}".format(*place(point)) for point in front)
    parts = [
        *_axes(marks_x, marks_y, chart, canvas),
        _JOINED.format(_FRONT, joined),
        *(_drawn(point, *place(point)) for point in sorted(chart.points, key=lambda point: point.is_front)),
        *_names([(point, *place(point)) for point in chart.points], canvas),
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


def _names(points: Sequence[tuple[LayoutPoint, float, float]], canvas: _Canvas) -> Iterator[Markup]:
    """Names of the chosen layout and of the front, each where it covers no point and no other name, else left out.

    The chosen one is always named; the two ends of the front come next.
    """
    taken = [(x - 7, y - 7, x + 7, y + 7) for _, x, y in points]
    named = [one for one in points if one[0].is_front or one[0].is_chosen]
    ends = {pick(points, key=lambda one: one[0].per_user)[0] for pick in (min, max)} if points else set()
    for point, x, y in sorted(named, key=lambda one: (not one[0].is_chosen, one[0] not in ends, one[1])):
        places = [_box(point, x + side, y + shift) for shift in _BASELINES for side in (-4, 4 - _width(point), 10)]
        free = [box for box in places if _is_inside(box, canvas) and not any(_overlap(box, other) for other in taken)]
        if free or point.is_chosen:
            box = (free or [one for one in places if _is_inside(one, canvas)] or places)[0]
            taken.append(box)
            yield _TEXT.format(box[0], box[3] - 4, "start", 1, _BOLD if point.is_chosen else "", point.name)


def _width(point: LayoutPoint) -> float:
    return _CHARACTER_WIDTH * len(point.name)


def _box(point: LayoutPoint, x: float, baseline: float) -> tuple[float, float, float, float]:
    """Left, top, right and bottom of a name that begins at `x`."""
    return (x, baseline + 4 - _NAME_HEIGHT, x + _width(point), baseline + 4)


def _is_inside(box: tuple[float, float, float, float], canvas: _Canvas) -> bool:
    return box[0] >= _LEFT and box[1] >= canvas.top - 8 and box[2] <= canvas.width and box[3] <= canvas.bottom


def _overlap(one: tuple[float, float, float, float], other: tuple[float, float, float, float]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
