"""Scatter plots with a Pareto front as SVG: for a wide and for a narrow place in a page, or as a file of its own.

In a page text and lines take its colours, so that they are readable on light and on dark ground; of the two drawings
`charts.css` shows one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from qserve.charts.figures import mark_of
from qserve.charts.scale import byte_ticks, scale_of, ticks
from qserve.charts.spec import Point, Scatter

__all__ = ["draw_scatter", "svg_file"]

_LEFT, _RIGHT, _BOTTOM = 76, 30, 56
_KEY_LINE = 20
_FRONT, _BEHIND = "#4a78c9", "#8b95a5"
_ROOM = 1.12
"""Beyond the largest value, for its name."""
_SMALLEST_SPREAD = 0.04
_CHARACTER_WIDTH, _NAME_HEIGHT, _TEXT_HEIGHT = 6.7, 15.0, 17.0
_STROKE_STEP = 4
_NUM_FURTHER = 6
_RADIUS, _CHOSEN_RADIUS = 5.0, 8.0
_BOTH = Markup('<div class="scatter">{}{}</div>')
_SVG = Markup(
    '<svg class="{kind}" viewBox="0 0 {w} {h}" width="100%" '
    'style="max-width:{w}px" font-family="system-ui, sans-serif" font-size="12" {colours} '
    'role="img" aria-label="{title}">{inside}</svg>'
)
_LINE = Markup('<path d="M{:.1f} {:.1f}L{:.1f} {:.1f}" stroke="currentColor" stroke-opacity="{}"/>')
_TEXT = Markup('<text x="{:.1f}" y="{:.1f}" text-anchor="{}" fill-opacity="{}"{}>{}</text>')
_JOINED = Markup('<polyline fill="none" stroke="{}" stroke-opacity="0.45" stroke-width="2.5" points="{}"/>')
_WHISKER = Markup('<path d="M{0:.1f} {1:.1f}V{2:.1f}M{3:.1f} {1:.1f}h10M{3:.1f} {2:.1f}h10" stroke="{4}"/>')
_CIRCLE = Markup(
    '<circle cx="{:.1f}" cy="{:.1f}" r="{:g}"{} fill="{}" stroke="{}" stroke-width="2"><title>{}</title></circle>'
)
_KEYS = ((_FRONT, "none", 5.0), (_BEHIND, "none", 5.0), ("none", "currentColor", 7.0))
_HALO = Markup(' paint-order="stroke" stroke="{}" stroke-width="4"')
_NAME, _BOLD = Markup(' class="name"'), Markup(' class="name" font-weight="600"')
_TURNED = Markup(' transform="rotate(-90 16 {:.0f})"')
_ON_WHITE = Markup('xmlns="http://www.w3.org/2000/svg" fill="#0f172a" color="#0f172a"')
_ON_PAGE = Markup('fill="currentColor"')

Box = tuple[float, float, float, float]
"""Left, top, right and bottom."""
Place = Callable[[float, float], tuple[float, float]]


@dataclass(frozen=True)
class _Canvas:
    """The size of a drawing, and where its legend begins; `is_file`: it has its own ground, title and figures."""

    kind: str
    width: int
    height: int
    legend_y: float
    keys_a_row: int
    largest_radius: float
    is_file: bool = False

    def top(self, chart: Scatter) -> float:
        lines = math.ceil(len(chart.keys) / self.keys_a_row) + bool(chart.remark)
        return self.legend_y + _KEY_LINE * (lines - 1) + 24

    @property
    def right(self) -> float:
        return self.width - _RIGHT

    @property
    def bottom(self) -> float:
        return self.height - _BOTTOM


_WIDE = _Canvas("wide", 680, 360, 10, 3, 15.0)
_NARROW = _Canvas("narrow", 350, 360, 10, 1, 12.0)
_FILE = _Canvas("file", 760, 440, 48, 3, 20.0, is_file=True)


def draw_scatter(chart: Scatter) -> Markup:
    """Points of the front are joined; those that are named have their names where they cover least."""
    title = f"{chart.y_title} over {chart.x_title}"
    return _BOTH.format(_drawn(chart, _WIDE, title), _drawn(chart, _NARROW, title))


def svg_file(chart: Scatter, title: str) -> str:
    """On white, with a title, and the text of each point below its name: nobody points at a file."""
    return f"{_drawn(chart, _FILE, title)}\n"


def _drawn(chart: Scatter, canvas: _Canvas, title: str) -> Markup:
    marks_x, marks_y = _marks(chart, canvas)
    top, low = canvas.top(chart), marks_y[0]

    def place(x: float, y: float) -> tuple[float, float]:
        share = (min(max(y, low), marks_y[-1]) - low) / (marks_y[-1] - low)
        return _LEFT + (canvas.right - _LEFT) * x / marks_x[-1], canvas.bottom - (canvas.bottom - top) * share

    front = [place(one.x, one.y) for one in sorted(chart.points, key=lambda point: point.x) if one.is_front]
    ordered = sorted(chart.points, key=lambda point: point.is_front)
    parts = [
        *(_ground(canvas, title) if canvas.is_file else ()),
        *_axes(marks_x, marks_y, chart, canvas, place),
        _JOINED.format(_FRONT, " ".join("{:.1f},{:.1f}".format(*one) for one in front)),
        *(part for one in ordered for part in _point(one, canvas, place)),
        *_names(chart, front, canvas, place),
        *_legend(chart, canvas),
    ]
    colours = _ON_WHITE if canvas.is_file else _ON_PAGE
    return _SVG.format(
        kind=canvas.kind, w=canvas.width, h=canvas.height, colours=colours, title=title, inside=Markup().join(parts)
    )


def _marks(chart: Scatter, canvas: _Canvas) -> tuple[Sequence[float], Sequence[float]]:
    widest = _ROOM * max(point.x for point in chart.points)
    few = 4 if canvas is _NARROW else 6
    marks_x = byte_ticks(widest, few - 1) if chart.x_kind == "bytes" else ticks(widest, few)
    if chart.y_kind == "number":
        return marks_x, ticks(_ROOM * max(point.y for point in chart.points), 5)
    high = min(1.0, max(point.y + point.stderr for point in chart.points))
    low = max(0.0, min(point.y - point.stderr for point in chart.points))
    return marks_x, scale_of([max(0.0, min(low, high - _SMALLEST_SPREAD)), high], 1.0)


def _ground(canvas: _Canvas, title: str) -> Iterator[Markup]:
    yield Markup('<rect width="{}" height="{}" rx="8" fill="#ffffff"/>').format(canvas.width, canvas.height)
    yield _TEXT.format(_LEFT, 28, "start", 1, Markup(' font-size="17" font-weight="600"'), title)


def _axes(
    marks_x: Sequence[float], marks_y: Sequence[float], chart: Scatter, canvas: _Canvas, place: Place
) -> Iterator[Markup]:
    for mark in marks_y:
        x, y = place(0, mark)
        yield _LINE.format(x, y, canvas.right, y, 0.15)
        yield _TEXT.format(x - 8, y + 4, "end", 0.75, "", _mark(mark, chart.y_kind))
    for mark in marks_x:
        yield _TEXT.format(place(mark, 0)[0], canvas.bottom + 18, "middle", 0.75, "", _mark(mark, chart.x_kind))
    middle = (canvas.top(chart) + canvas.bottom) / 2
    yield _TEXT.format((_LEFT + canvas.right) / 2, canvas.height - 12, "middle", 0.75, "", chart.x_title)
    yield _TEXT.format(16, middle, "middle", 0.75, _TURNED.format(middle), chart.y_title)


def _mark(value: float, kind: str) -> str:
    return f"{value:,g}" if kind == "number" else mark_of(value, "bytes" if kind == "bytes" else "share")


def _radius(point: Point, canvas: _Canvas) -> float:
    if point.size is not None:
        return max(_RADIUS, canvas.largest_radius * math.sqrt(point.size))
    return _CHOSEN_RADIUS if point.is_chosen else _RADIUS


def _point(point: Point, canvas: _Canvas, place: Place) -> Iterator[Markup]:
    x, y = place(point.x, point.y)
    colour, kind = (_FRONT, "front") if point.is_front else (_BEHIND, "behind")
    if point.stderr:
        ends = (place(point.x, point.y + sign * point.stderr)[1] for sign in (1, -1))
        yield _WHISKER.format(x, *ends, x - 5, colour)
    ring = "currentColor" if point.is_chosen else "none"
    shape = Markup(' class="point {}"').format(kind)
    yield _CIRCLE.format(x, y, round(_radius(point, canvas), 1), shape, colour, ring, f"{point.label}: {point.text}")


def _legend(chart: Scatter, canvas: _Canvas) -> Iterator[Markup]:
    x, y = _LEFT + 5.0, canvas.legend_y
    for number, (words, (colour, ring, radius)) in enumerate(zip(chart.keys, _KEYS, strict=False)):
        if number and number % canvas.keys_a_row == 0:
            x, y = _LEFT + 5.0, y + _KEY_LINE
        yield _CIRCLE.format(x, y, radius, "", colour, ring, words)
        yield _TEXT.format(x + 12, y + 4, "start", 0.75, "", words)
        x += _CHARACTER_WIDTH * len(words) + 24
    if chart.remark:
        yield _TEXT.format(_LEFT, y + _KEY_LINE + 4, "start", 0.75, "", chart.remark)


def _names(chart: Scatter, front: Sequence[tuple[float, float]], canvas: _Canvas, place: Place) -> Iterator[Markup]:
    """Next to their points, where they cover no point, no other name and nothing of the line; else left out.

    The chosen point is always named, and every one where the chart says so; the two ends of the front come next.
    """
    points = [(one, *place(one.x, one.y)) for one in chart.points]
    taken = [_around(x, y, _radius(point, canvas) + 2) for point, x, y in points]
    for point, x, _ in points:
        high, low = (place(point.x, point.y + sign * point.stderr)[1] for sign in (1, -1))
        taken += [(x - 6, high, x + 6, low)] if point.stderr else []
    line = [one for pair in itertools.pairwise(front) for one in _along(*pair)]
    named = [one for one in points if chart.names_all or one[0].is_front or one[0].is_chosen]
    ends = {pick(chart.points, key=lambda one: one.x) for pick in (min, max)}
    for point, x, y in sorted(named, key=lambda one: (not one[0].is_chosen, one[0] not in ends, one[1])):
        must = chart.names_all or point.is_chosen
        boxes = list(_places(point, x, y, canvas, must))
        inside = [box for box in boxes if _is_inside(box, canvas, canvas.top(chart))] or boxes[:1]
        covers = [sum(_overlap(box, other) for other in taken) for box in inside]
        crosses = [any(_holds(box, *one) for one in line) for box in inside]
        covered, crossed, box = min(zip(covers, crosses, inside, strict=True), key=lambda one: one[:2])
        if must or not (covered or crossed):
            taken.append(box)
            yield from _name(point, box, canvas)


def _name(point: Point, box: Box, canvas: _Canvas) -> Iterator[Markup]:
    """In a file the halo, which hides the lines behind, is white; in a page the stylesheet has it."""
    style = _BOLD if point.is_chosen or canvas.is_file else _NAME
    halo = _HALO.format("#ffffff") if canvas.is_file else Markup()
    yield _TEXT.format(box[0], box[1] + _NAME_HEIGHT - 4, "start", 1, style + halo, point.label)
    if canvas.is_file:
        yield _TEXT.format(box[0], box[3] - 4, "start", 0.75, halo, point.text)


def _places(point: Point, x: float, y: float, canvas: _Canvas, must: bool) -> Iterator[Box]:
    """Around the point, best first: a front falls to the right, so that above it and to the right there is room."""
    width = _CHARACTER_WIDTH * max(len(point.label), len(point.text) * canvas.is_file) + 4
    height = _NAME_HEIGHT + _TEXT_HEIGHT * canvas.is_file
    radius = _radius(point, canvas)
    above, below, level = -radius - 2 - height, radius + 5, 0.5 - height / 2
    corners = [(-4, above), (radius + 7, level), (4 - width, below), (-radius - 7 - width, level)]
    corners += [(4 - width, above), (-4, below), (-width / 2, above), (-width / 2, below)]
    for number in range(1, _NUM_FURTHER * must):
        up, down = above - number * height, below + number * height
        corners += [(-4, down), (-width / 2, down), (4 - width, down), (-4, up), (-width / 2, up), (4 - width, up)]
    for left, top in corners:
        yield x + left, y + top, x + left + width, y + top + height


def _around(x: float, y: float, radius: float) -> Box:
    return x - radius, y - radius, x + radius, y + radius


def _along(start: tuple[float, float], end: tuple[float, float]) -> Iterator[tuple[float, float]]:
    """Points of a stroke, some pixels apart."""
    steps = max(1, math.ceil(math.dist(start, end) / _STROKE_STEP))
    for step in range(steps + 1):
        yield tuple(a + (b - a) * step / steps for a, b in zip(start, end, strict=True))  # type: ignore[misc]


def _is_inside(box: Box, canvas: _Canvas, top: float) -> bool:
    return box[0] >= _LEFT and box[1] >= top - 8 and box[2] <= canvas.width and box[3] <= canvas.bottom


def _overlap(one: Box, other: Box) -> bool:
    """Whether they share more than an edge."""
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _holds(box: Box, x: float, y: float) -> bool:
    return box[0] < x < box[2] and box[1] < y < box[3]
