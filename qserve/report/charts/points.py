"""The Pareto chart of a comparison: accuracy over memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from markupsafe import Markup

from qserve.report.charts.labels import Box, least_covering
from qserve.report.charts.plot import HEIGHT, WIDTH, frame
from qserve.report.charts.scale import byte_ticks, nice_step
from qserve.report.charts.specs import Point, Points
from qserve.report.figures import mark_of

__all__ = ["draw_points"]

_FRONT = Markup('<path class="line front" d="{}"/>')
_WHISKER = Markup('<path class="line {}" d="M{:.2f} {:.2f}V{:.2f}"/>')
_POINT = Markup('<path class="point {}" style="stroke-width:{:.0f}" d="M{:.2f} {:.2f}h0"><title>{}</title></path>')
_NAME = Markup(
    '<span class="point-name" style="left:{:.2f}%;bottom:{:.2f}%;translate:calc(-50% + {:.0f}px) calc(50% - {:.0f}px)">'
    "{}</span>"
)
_AXES = Markup('<p class="axes">{} over {}; size of a point: tokens/s; grey: another is as accurate in less memory</p>')
_SMALLEST, _LARGEST = 12, 30
_SMALLEST_SPREAD = 0.01
_NARROW = (264, 240)
"""Pixels of the plot on a phone. What lies apart there does so on every screen: names keep their size."""
_CHARACTER_WIDTH, _NAME_HEIGHT, _GAP = 7.2, 16, 4


def draw_points(chart: Points) -> Markup:
    """Points that nothing beats in both are joined; the others are grey."""
    low = min(point.y - point.stderr for point in chart.points)
    high = max(point.y + point.stderr for point in chart.points)
    spread = max(high - low, _SMALLEST_SPREAD)
    bottom, top = max(0.0, low - 0.6 * spread), min(high + 0.9 * spread, 1.0 + 0.3 * spread)
    marks_x = byte_ticks(1.1 * max(point.x for point in chart.points))

    def x(value: float) -> float:
        return value / marks_x[-1]

    def y(value: float) -> float:
        return (value - bottom) / (top - bottom)

    front = sorted((point for point in chart.points if point.is_front), key=lambda point: point.x)
    path = "M" + "L".join(f"{WIDTH * x(one.x):.2f} {HEIGHT * (1 - y(one.y)):.2f}" for one in front)
    drawn = [_FRONT.format(path), *(part for point in chart.points for part in _drawn(point, x(point.x), y))]
    plot = frame(
        drawn,
        [(y(mark), mark_of(mark, "share")) for mark in _shares(bottom, min(top, 1.0))],
        [(x(mark), mark_of(mark, "bytes")) for mark in marks_x],
        _names(chart, x, y),
        "tall",
    )
    return plot + _AXES.format(chart.y_title, chart.x_title)


def _shares(bottom: float, top: float) -> list[float]:
    """Round marks of an axis that need not begin at nothing."""
    step = nice_step(top - bottom, 4)
    return [step * count for count in range(math.ceil(bottom / step - 1e-9), math.floor(top / step + 1e-9) + 1)]


def _names(chart: Points, x: Callable[[float], float], y: Callable[[float], float]) -> Iterator[Markup]:
    """Next to each point, where a phone has room for it."""
    places = [(one, _NARROW[0] * x(one.x), _NARROW[1] * (1 - y(one.y))) for one in chart.points]
    taken: list[Box] = [_box(left, top, _size(one), _size(one)) for one, left, top in places]
    for one, left, top in places:
        offsets = list(_offsets(one))
        width = _CHARACTER_WIDTH * len(one.label)
        boxes = [_box(left + right, top - up, width, _NAME_HEIGHT) for right, up in offsets]
        number, box = least_covering(boxes, taken)
        taken.append(box)
        yield _NAME.format(100 * x(one.x), 100 * y(one.y), *offsets[number], one.label)


def _offsets(point: Point) -> Iterator[tuple[float, float]]:
    """Pixels to the right and up from the point to the middle of its name, best first."""
    up = (_size(point) + _NAME_HEIGHT) / 2 + _GAP
    right = (_size(point) + _CHARACTER_WIDTH * len(point.label)) / 2 + _GAP
    yield from ((0, up), (0, -up), (right, 0), (-right, 0))
    for line in range(1, 5):
        yield from ((0, up + line * _NAME_HEIGHT), (0, -up - line * _NAME_HEIGHT))


def _size(point: Point) -> float:
    return float(_SMALLEST + (_LARGEST - _SMALLEST) * point.size**0.5)


def _box(left: float, top: float, width: float, height: float) -> Box:
    return left - width / 2, top - height / 2, left + width / 2, top + height / 2


def _drawn(point: Point, x: float, y: Callable[[float], float]) -> Iterator[Markup]:
    kind = "s1" if point.is_front else "behind"
    top, bottom = (HEIGHT * (1 - y(share)) for share in (min(1.0, point.y + point.stderr), point.y - point.stderr))
    yield _WHISKER.format(kind, WIDTH * x, top, bottom)
    yield _POINT.format(kind, _size(point), WIDTH * x, HEIGHT * (1 - y(point.y)), f"{point.label}: {point.text}")
