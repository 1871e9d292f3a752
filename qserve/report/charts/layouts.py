"""The Pareto chart of layouts: tokens/s per user against tokens/s per card. An SVG without a stylesheet.

Text and lines take the colour of the page around it, so that it stands on light and on dark ground.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from qserve.report.charts.scale import ticks
from qserve.report.charts.specs import LayoutPoint, Layouts

__all__ = ["draw_layouts", "layout_points"]

_WIDTH, _HEIGHT = 680, 360
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 24, 34, 52
_FRONT, _BEHIND = "#4a78c9", "#8b95a5"
_ROOM = 1.12
"""Beyond the largest value, for its name."""
_CHARACTER_WIDTH, _NAME_HEIGHT = 6.7, 15.0
_BASELINES = (-11, 21, -26, 36)
"""Of a name, from its point: above it, below it, and one line further."""
_SVG = Markup(
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {w} {h}" width="100%" '
    'style="max-width:{w}px;min-width:30rem" font-family="system-ui, sans-serif" font-size="12" fill="currentColor" '
    'role="img" aria-label="{title}">{inside}</svg>'
)
_LINE = Markup('<path d="M{:.1f} {:.1f}L{:.1f} {:.1f}" stroke="currentColor" stroke-opacity="0.15"/>')
_TEXT = Markup('<text x="{:.1f}" y="{:.1f}" text-anchor="{}" fill-opacity="{}"{}>{}</text>')
_JOINED = Markup('<polyline fill="none" stroke="{}" stroke-opacity="0.45" stroke-width="2.5" points="{}"/>')
_POINT = Markup(
    '<circle cx="{:.1f}" cy="{:.1f}" r="{}" fill="{}" stroke="{}" stroke-width="2"><title>{}</title></circle>'
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


def draw_layouts(chart: Layouts) -> Markup:
    """Layouts that no other beats in both are joined and named where there is room; the chosen one has a ring."""
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    marks_x = ticks(_ROOM * max(point.per_user for point in chart.points), 6)
    marks_y = ticks(_ROOM * max(point.per_card for point in chart.points), 5)

    def place(point: LayoutPoint) -> tuple[float, float]:
        x = _LEFT + (right - _LEFT) * point.per_user / marks_x[-1]
        return x, bottom - (bottom - _TOP) * point.per_card / marks_y[-1]

    front = sorted((point for point in chart.points if point.is_front), key=lambda point: point.per_user)
    joined = " ".join("{:.1f},{:.1f}".format(*place(point)) for point in front)
    parts = [
        *_axes(marks_x, marks_y, chart),
        _JOINED.format(_FRONT, joined),
        *(_drawn(point, *place(point)) for point in sorted(chart.points, key=lambda point: point.is_front)),
        *_names([(point, *place(point)) for point in chart.points]),
        *_legend(),
    ]
    title = f"{chart.y_title} over {chart.x_title}"
    return _SVG.format(w=_WIDTH, h=_HEIGHT, title=title, inside=Markup().join(parts))


def _axes(marks_x: Sequence[float], marks_y: Sequence[float], chart: Layouts) -> Iterator[Markup]:
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    for mark in marks_y:
        y = bottom - (bottom - _TOP) * mark / marks_y[-1]
        yield _LINE.format(_LEFT, y, right, y)
        yield _TEXT.format(_LEFT - 8, y + 4, "end", 0.75, "", f"{mark:,g}")
    for mark in marks_x:
        x = _LEFT + (right - _LEFT) * mark / marks_x[-1]
        yield _TEXT.format(x, bottom + 18, "middle", 0.75, "", f"{mark:,g}")
    middle = (_TOP + bottom) / 2
    yield _TEXT.format((_LEFT + right) / 2, _HEIGHT - 12, "middle", 0.75, "", chart.x_title)
    yield _TEXT.format(16, middle, "middle", 0.75, _TURNED.format(middle), chart.y_title)


def _drawn(point: LayoutPoint, x: float, y: float) -> Markup:
    label = f"{point.name}: {point.per_user:,.1f} tokens/s a user, {point.per_card:,.0f} tokens/s a card"
    colour = _FRONT if point.is_front else _BEHIND
    ring = "currentColor" if point.is_chosen else "none"
    return _POINT.format(x, y, 8 if point.is_chosen else 5, colour, ring, label)


def _legend() -> Iterator[Markup]:
    for x, colour, ring, radius, words in (
        (_LEFT + 5, _FRONT, "none", 5, "no layout is better in both"),
        (_LEFT + 205, _BEHIND, "none", 5, "another is better in both"),
        (_LEFT + 392, "none", "currentColor", 7, "chosen for this load"),
    ):
        yield _POINT.format(x, 10, radius, colour, ring, words)
        yield _TEXT.format(x + 12, 14, "start", 0.75, "", words)


def _names(points: Sequence[tuple[LayoutPoint, float, float]]) -> Iterator[Markup]:
    """Names of the chosen layout and of the front, each where it covers no point and no other name, else left out.

    The chosen one is always named; the two ends of the front come next.
    """
    taken = [(x - 7, y - 7, x + 7, y + 7) for _, x, y in points]
    named = [one for one in points if one[0].is_front or one[0].is_chosen]
    ends = {pick(points, key=lambda one: one[0].per_user)[0] for pick in (min, max)} if points else set()
    for point, x, y in sorted(named, key=lambda one: (not one[0].is_chosen, one[0] not in ends, one[1])):
        places = [_box(point, x + side, y + shift) for shift in _BASELINES for side in (-4, 4 - _width(point), 10)]
        free = [box for box in places if _is_inside(box) and not any(_overlap(box, other) for other in taken)]
        if free or point.is_chosen:
            box = (free or [one for one in places if _is_inside(one)] or places)[0]
            taken.append(box)
            yield _TEXT.format(box[0], box[3] - 4, "start", 1, _BOLD if point.is_chosen else "", point.name)


def _width(point: LayoutPoint) -> float:
    return _CHARACTER_WIDTH * len(point.name)


def _box(point: LayoutPoint, x: float, baseline: float) -> tuple[float, float, float, float]:
    """Left, top, right and bottom of a name that begins at `x`."""
    return (x, baseline + 4 - _NAME_HEIGHT, x + _width(point), baseline + 4)


def _is_inside(box: tuple[float, float, float, float]) -> bool:
    return box[0] >= _LEFT and box[1] >= _TOP - 8 and box[2] <= _WIDTH and box[3] <= _HEIGHT - _BOTTOM


def _overlap(one: tuple[float, float, float, float], other: tuple[float, float, float, float]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
