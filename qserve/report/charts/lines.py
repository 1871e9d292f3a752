"""Line charts over time."""

from __future__ import annotations

from collections.abc import Iterator

from markupsafe import Markup

from qserve.report.charts.plot import HEIGHT, WIDTH, dot, frame, legend
from qserve.report.charts.scale import byte_ticks, clock_step, ticks
from qserve.report.charts.specs import Line, Lines
from qserve.report.figures import clock, mark_of, text_of

__all__ = ["draw_lines"]

_PATH = Markup('<path class="line s{}" d="{}"/>')
_MOST_X_LABELS = 5
_MOST_DOTS = 40
_GAP_STEPS = 1.5
"""Points further apart than so many steps are not joined: nobody asked in between."""


def draw_lines(chart: Lines) -> Markup:
    """Legend, if there is more than one line, and plot."""
    high = max((value for line in chart.lines for value in line.values if value is not None), default=0.0)
    marks = byte_ticks(high) if chart.kind == "bytes" else ticks(high, smallest=float(chart.kind == "count"))
    first, last = chart.unix_s[0], max(chart.unix_s[-1], chart.unix_s[0] + chart.step_s)
    drawn = [part for line in chart.lines for part in _line(chart, line, marks[-1], first, last)]
    keys = [(line.colour, line.name) for line in chart.lines]
    return legend(keys) + frame(
        drawn, [(mark / marks[-1], mark_of(mark, chart.kind)) for mark in marks], _times(first, last)
    )


def _line(chart: Lines, line: Line, high: float, first: float, last: float) -> Iterator[Markup]:
    places = [
        (WIDTH * (unix_s - first) / (last - first), HEIGHT * (1 - value / high), unix_s, value)
        for unix_s, value in zip(chart.unix_s, line.values, strict=True)
        if value is not None
    ]
    path, before = "", None
    for x, y, unix_s, _ in places:
        joined = before is not None and unix_s - before <= _GAP_STEPS * chart.step_s
        path += f"{'L' if joined else 'M'}{x:.1f} {y:.2f}{'' if joined else 'h0'}"
        before = unix_s
    if path:
        yield _PATH.format(line.colour, path)
    if len(places) <= _MOST_DOTS:
        for x, y, unix_s, value in places:
            label = f"{clock(unix_s, last - first)} · {line.name}: {text_of(value, chart.kind)}"
            yield dot(line.colour, x, y, label)


def _times(first: float, last: float) -> list[tuple[float, str]]:
    span = last - first
    step = clock_step(span, _MOST_X_LABELS)
    begin = int(first // step) * step + (step if first % step else 0)
    return [((at - first) / span, clock(at, span)) for at in range(int(begin), int(last) + 1, step)]
