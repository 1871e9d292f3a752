"""Lines over steps as inline SVG: the drawing is stretched to the page's width, text and strokes keep their size."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from qserve.report.smoothing import FEWEST_TO_SMOOTH, smoothed

__all__ = ["Series", "line_chart", "scale_of", "with_mean"]

_NUM_INTERVALS = 3
_MOST_TOLD = 60
"""Values that a pointer can ask for."""
Format = Callable[[float], str]


@dataclass(frozen=True)
class Series:
    """One line: `kind` names its colour in the stylesheet, `points` are (x, y) with x rising.

    `is_raw`: drawn thin and without a name, below the line that is smoothed from it.
    """

    kind: str
    name: str
    points: tuple[tuple[float, float], ...]
    is_raw: bool = False


def with_mean(one: Series, name: str) -> tuple[Series, ...]:
    """The line of many points as a thin one, and over it, called `name`, its running mean."""
    if len(one.points) < FEWEST_TO_SMOOTH:
        return (one,)
    means = smoothed([y for _, y in one.points])
    points = tuple((x, y) for (x, _), y in zip(one.points, means, strict=True) if y is not None)
    return (replace(one, is_raw=True), Series(one.kind, name, points))


def line_chart(title: str, x_name: str, series: Sequence[Series], format_value: Format, most: float = math.inf) -> str:
    """All series on one scale, axes with their names, values where a pointer rests; "" where there is no point.

    `most` is the largest value that there can be: 1 for shares.
    """
    drawn = [one for one in series if one.points]
    if not drawn:
        return ""
    marks = scale_of([y for one in drawn for _, y in one.points], most)
    low, high = min(one.points[0][0] for one in drawn), max(one.points[-1][0] for one in drawn)
    area = _PlotArea(low, high, marks[0], marks[-1])
    description = "; ".join(_description(one, x_name, format_value) for one in drawn if not one.is_raw)
    grid = "".join(
        f'<line x1="0" x2="100" y1="{area.y(y):.2f}" y2="{area.y(y):.2f}" class="qs-grid-line"/>' for y in marks
    )
    lines = "".join(_line(one, area) for one in drawn)
    return (
        f'<figure class="qs-histogram qs-chart"><figcaption>{html.escape(title)}</figcaption><div class="qs-plot">'
        f'<div class="qs-counts" aria-hidden="true">{"".join(_mark(y, format_value) for y in reversed(marks))}</div>'
        f'<svg width="100%" height="150" viewBox="0 0 100 100" preserveAspectRatio="none" role="img" '
        f'aria-label="{html.escape(f"{title}: {description}")}">'
        f"{grid}{lines}{_pointed(drawn, area, x_name, format_value)}</svg>"
        f'<div class="qs-ticks"><span class="qs-first" style="left:0">{low:,.0f}</span>'
        f'<span class="qs-axis-name" style="left:50%">{html.escape(x_name)}</span>'
        f'<span class="qs-last" style="left:100%">{high:,.0f}</span></div></div>{_legend(drawn)}</figure>'
    )


def scale_of(values: Sequence[float], most: float = math.inf) -> list[float]:
    """Marks at round distances, between whose ends all values lie; four, or fewer where they would exceed `most`."""
    low, high = min(values), max(values)
    span = (high - low) or abs(high) or 1.0
    power: float = 10.0 ** math.floor(math.log10(span / _NUM_INTERVALS))
    for step in (power * factor for factor in (1, 1.5, 2, 2.5, 3, 4, 5, 7.5, 10, 15, 20)):
        first = math.floor(low / step + 1e-9) * step
        if first + _NUM_INTERVALS * step >= high - 1e-9 * step:
            break
    marks = [first + index * step for index in range(_NUM_INTERVALS + 1)]
    return marks if marks[-1] <= most + 1e-9 else _marks_below(most, low)


def _marks_below(most: float, low: float) -> list[float]:
    """Down from `most`, in the smallest round steps of which four reach `low`."""
    span = (most - low) or 1.0
    power: float = 10.0 ** math.floor(math.log10(span / 4))
    step = next(one for one in (power, 2 * power, 2.5 * power, 5 * power, 10 * power) if 4 * one >= span - 1e-9)
    num = math.ceil(span / step - 1e-9)
    return [most - step * index for index in range(num, -1, -1)]


@dataclass(frozen=True)
class _PlotArea:
    """Where a value is drawn, in hundredths of the width and the height."""

    left: float
    right: float
    bottom: float
    top: float

    def x(self, value: float) -> float:
        return 100 * (value - self.left) / ((self.right - self.left) or 1.0)

    def y(self, value: float) -> float:
        return 100 * (self.top - value) / (self.top - self.bottom)


def _line(one: Series, area: _PlotArea) -> str:
    """A single point is drawn as a short stroke: a line of no length would not be seen."""
    points = [(area.x(x), area.y(y)) for x, y in one.points]
    if len(points) == 1:
        points = [(points[0][0] - 1, points[0][1]), (points[0][0] + 1, points[0][1])]
    path = " ".join(f"{x:.2f},{y:.2f}" for x, y in points)
    kind = f"qs-line qs-stroke-{one.kind}{' qs-raw' if one.is_raw else ''}"
    return f'<polyline points="{path}" class="{kind}" vector-effect="non-scaling-stroke"/>'


def _pointed(series: Sequence[Series], area: _PlotArea, x_name: str, format_value: Format) -> str:
    """Columns over the drawing, each of which says the values there."""
    points = max((one.points for one in series), key=len)
    every = math.ceil(len(points) / _MOST_TOLD)
    chosen = points[::every]
    width = 100 / len(chosen)
    return "".join(
        f'<rect x="{min(100 - width, max(0.0, area.x(x) - width / 2)):.2f}" width="{width:.2f}" height="100" '
        f'fill="transparent"><title>{html.escape(f"{x_name} {x:,.0f}: {format_value(y)}")}</title></rect>'
        for x, y in chosen
    )


def _mark(value: float, format_value: Format) -> str:
    return f"<span>{html.escape(format_value(value))}</span>"


def _description(one: Series, x_name: str, format_value: Format) -> str:
    ends = (f"{format_value(y)} ({x_name} {x:,.0f})" for x, y in (one.points[0], one.points[-1]))
    return f"{one.name} {' → '.join(ends)}"


def _legend(series: Sequence[Series]) -> str:
    if len(series) < 2:
        return ""
    named = (one for one in series if not one.is_raw)
    keys = "".join(f'<li><i class="qs-fill-{one.kind}"></i>{html.escape(one.name)}</li>' for one in named)
    return f'<ul class="qs-legend">{keys}</ul>'
