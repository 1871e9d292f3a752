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
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 24, 26, 52
_FRONT, _BEHIND = "#4a78c9", "#8b95a5"
_ROOM = 1.12
"""Beyond the largest value, for its name."""
_NAME_WIDTH, _NAME_HEIGHT = 150.0, 15.0
_FLIPPED = 0.72
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
    """Layouts that no other beats in both are joined and named; the chosen one has a ring."""
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
        *_names([(point, *place(point)) for point in chart.points if point.is_front or point.is_chosen]),
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
    told = f"{point.name}: {point.per_user:,.1f} tokens/s a user, {point.per_card:,.0f} tokens/s a card"
    colour = _FRONT if point.is_front else _BEHIND
    return _POINT.format(x, y, 8 if point.is_chosen else 5, colour, "currentColor" if point.is_chosen else "none", told)


def _names(points: Sequence[tuple[LayoutPoint, float, float]]) -> Iterator[Markup]:
    """Above each point, else below it, at the left of those near the right edge; none lies on another."""
    taken: list[tuple[float, float]] = []
    for point, x, y in sorted(points, key=lambda one: not one[0].is_chosen):
        anchor = "end" if x > _FLIPPED * _WIDTH else "start"
        middle = x + (_NAME_WIDTH / 2) * (1 if anchor == "start" else -1)
        at_y = next((y + shift for shift in (-12, 22) if _is_free(middle, y + shift, taken)), None)
        if at_y is not None:
            taken.append((middle, at_y))
            yield _TEXT.format(x, at_y, anchor, 1, _BOLD if point.is_chosen else "", point.name)


def _is_free(x: float, y: float, taken: Sequence[tuple[float, float]]) -> bool:
    return all(abs(x - x2) > _NAME_WIDTH or abs(y - y2) > _NAME_HEIGHT for x2, y2 in taken)
