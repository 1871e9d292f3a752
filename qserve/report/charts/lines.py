"""Line charts over time, or over steps."""

from __future__ import annotations

import math
from collections.abc import Iterator

from markupsafe import Markup

from qserve.report.charts.plot import HEIGHT, WIDTH, dot, frame, legend
from qserve.report.charts.scale import byte_ticks, clock_step, nice_step, ticks
from qserve.report.charts.specs import Line, Lines
from qserve.report.figures import clock, mark_of, text_of

__all__ = ["draw_lines"]

_PATH = Markup('<path class="line{} s{}" d="{}"/>')
_MOST_X_LABELS = 4
_DAY_S = 86400
_MOST_DOTS = 40
_GAP_STEPS = 1.5
"""Points further apart than so many steps are not joined: nobody asked in between."""


def draw_lines(chart: Lines) -> Markup:
    """Legend, if there is more than one line, and plot."""
    marks = _marks(chart)
    first, last = chart.at[0], max(chart.at[-1], chart.at[0] + chart.step)
    drawn = [part for line in chart.lines for part in _line(chart, line, marks[-1], first, last)]
    keys = [("faint " * line.is_faint, line.colour, line.name) for line in chart.lines]
    labels = _counted(first, last, chart.counts) if chart.counts else _times(first, last)
    return legend(keys) + frame(drawn, [(mark / marks[-1], mark_of(mark, chart.kind)) for mark in marks], labels)


def _marks(chart: Lines) -> tuple[float, ...]:
    """Of the axis at the left; shares end at 100 %."""
    high = max((value for line in chart.lines for value in line.values if value is not None), default=0.0)
    if chart.kind == "share":
        return ticks(min(high, 1.0))
    return byte_ticks(high) if chart.kind == "bytes" else ticks(high, smallest=float(chart.kind == "count"))


def _line(chart: Lines, line: Line, high: float, first: float, last: float) -> Iterator[Markup]:
    places = [
        (WIDTH * (at - first) / (last - first), HEIGHT * (1 - value / high), at, value)
        for at, value in zip(chart.at, line.values, strict=True)
        if value is not None
    ]
    path, before = "", None
    for x, y, at, _ in places:
        joined = before is not None and at - before <= _GAP_STEPS * chart.step
        path += f"{'L' if joined else 'M'}{x:.1f} {y:.2f}{'' if joined else 'h0'}"
        before = at
    if path:
        yield _PATH.format(" faint" * line.is_faint, line.colour, path)
    if len(places) <= _MOST_DOTS and not line.is_faint:
        for x, y, at, value in places:
            when = f"{chart.counts} {at:,.0f}" if chart.counts else clock(at, last - first)
            yield dot(line.colour, x, y, f"{when} · {line.name}: {text_of(value, chart.kind)}")


def _times(first: float, last: float) -> list[tuple[float, str]]:
    span = last - first
    step = max(clock_step(span, _MOST_X_LABELS), _DAY_S if span > 2 * _DAY_S else 0)
    begin = int(first // step) * step + (step if first % step else 0)
    return [((at - first) / span, clock(at, span)) for at in range(int(begin), int(last) + 1, step)]


def _counted(first: float, last: float, name: str) -> list[tuple[float, str]]:
    """The first label says what is counted."""
    step = max(1, round(nice_step(last - first, _MOST_X_LABELS - 1)))
    begin = math.ceil(first / step) * step
    marks = range(begin, int(last) + 1, step)
    return [((at - first) / (last - first), f"{at:,}" if index else f"{name} {at:,}") for index, at in enumerate(marks)]
