"""The Pareto chart of a comparison: accuracy over memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from markupsafe import Markup

from qserve.report.charts.plot import HEIGHT, WIDTH, frame
from qserve.report.charts.scale import byte_ticks, nice_step
from qserve.report.charts.specs import Point, Points
from qserve.report.figures import mark_of

__all__ = ["draw_points"]

_FRONT = Markup('<path class="line front" d="{}"/>')
_WHISKER = Markup('<path class="line {}" d="M{:.2f} {:.2f}V{:.2f}"/>')
_POINT = Markup('<path class="point {}" style="stroke-width:{:.0f}" d="M{:.2f} {:.2f}h0"><title>{}</title></path>')
_NAME = Markup('<span class="point-name{}" style="left:{:.2f}%;bottom:{:.2f}%"><b>{}</b><br>{}</span>')
_AXES = Markup(
    '<p class="axes">{} over {}; size of a point: tokens a second; grey: another is as accurate in less memory</p>'
)
_SMALLEST, _LARGEST = 12, 30
_SMALLEST_SPREAD = 0.01
# A name is so wide and high, in parts of a plot on a phone.
_NEAR_X, _NEAR_Y = 0.3, 0.2


def draw_points(chart: Points) -> Markup:
    """Points that nothing beats in both are joined; the others are grey."""
    low = min(point.y - point.stderr for point in chart.points)
    high = max(point.y + point.stderr for point in chart.points)
    spread = max(high - low, _SMALLEST_SPREAD)
    bottom, top = max(0.0, low - 0.6 * spread), high + 0.9 * spread
    marks_x = byte_ticks(1.1 * max(point.x for point in chart.points))

    def x(value: float) -> float:
        return value / marks_x[-1]

    def y(value: float) -> float:
        return (value - bottom) / (top - bottom)

    front = sorted((point for point in chart.points if point.is_front), key=lambda point: point.x)
    path = "M" + "L".join(f"{WIDTH * x(one.x):.2f} {HEIGHT * (1 - y(one.y)):.2f}" for one in front)
    drawn = [_FRONT.format(path), *(part for point in chart.points for part in _drawn(point, x(point.x), y))]
    plot = frame(
        drawn, [(y(mark), mark_of(mark, "share")) for mark in _shares(bottom, min(top, 1.0))],
        [(x(mark), mark_of(mark, "bytes")) for mark in marks_x], _names(chart, x, y), "tall",
    )  # fmt: skip
    return plot + _AXES.format(chart.y_title, chart.x_title)


def _shares(bottom: float, top: float) -> list[float]:
    """Round marks of an axis that need not begin at nothing."""
    step = nice_step(top - bottom, 4)
    return [step * count for count in range(math.ceil(bottom / step - 1e-9), math.floor(top / step + 1e-9) + 1)]


def _names(chart: Points, x: Callable[[float], float], y: Callable[[float], float]) -> Iterator[Markup]:
    """Above each point, or below it where the name of its neighbour is in the way."""
    above: tuple[float, float] | None = None
    for one in sorted(chart.points, key=lambda point: point.x):
        at = x(one.x), y(one.y)
        is_below = above is not None and at[0] - above[0] < _NEAR_X and abs(at[1] - above[1]) < _NEAR_Y
        above = above if is_below else at
        yield _NAME.format(" below" if is_below else "", 100 * at[0], 100 * at[1], one.label, one.text)


def _drawn(point: Point, x: float, y: Callable[[float], float]) -> Iterator[Markup]:
    kind = "s1" if point.is_front else "behind"
    top, bottom = HEIGHT * (1 - y(point.y + point.stderr)), HEIGHT * (1 - y(point.y - point.stderr))
    yield _WHISKER.format(kind, WIDTH * x, top, bottom)
    size = _SMALLEST + (_LARGEST - _SMALLEST) * point.size**0.5
    yield _POINT.format(kind, size, WIDTH * x, HEIGHT * (1 - y(point.y)), f"{point.label}: {point.text}")
