"""Lines and columns: numbers at the left and below in HTML, between them an SVG that stretches.

Within the SVG x and y go from 0 to 1000 and from 0 to 100 (down), whatever its size; strokes keep their width. A dot is
a line of no length with round ends, which no stretching makes an ellipse.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from markupsafe import Markup

from qserve.charts.figures import clock, mark_of, text_of
from qserve.charts.scale import byte_ticks, clock_step, count_ticks, nice_step, scale_of, ticks
from qserve.charts.spec import Histogram, Line, Lines

__all__ = ["draw_histogram", "draw_lines", "legend"]

_WIDTH, _HEIGHT = 1000, 100
_FRAME = Markup(
    '<div class="plot"><div class="ys" aria-hidden="true">{}</div>'
    '<svg viewBox="0 0 1000 100" preserveAspectRatio="none" role="img" aria-label="{}">{}{}</svg>'
    '<div class="over">{}</div><div class="xs">{}</div></div>'
)
_Y = Markup('<span style="bottom:{:.2f}%">{}</span>')
_X = Markup('<span style="left:{:.2f}%">{}</span>')
_LAST_X = Markup('<span class="last">{}</span>')
_GRID = Markup('<path class="grid" d="M0 {0:.2f}H1000"/>')
_KEY = Markup('<span class="key"><i class="{}c{}"></i>{}</span>')
_PATH = Markup('<path class="line{} s{}" d="{}"/>')
_DOT = Markup('<path class="dot s{}" d="M{:.2f} {:.2f}h0"><title>{}</title></path>')
_COLUMN = Markup('<rect class="{}" x="{:.2f}" y="{:.3f}" width="{:.2f}" height="{:.3f}"><title>{}</title></rect>')
_MARK = Markup('<path class="mark" d="M{:.2f} 0V100"/>')
_MARK_NAME = Markup('<span class="mark-name{}" style="left:{:.2f}%;top:{}rem">{}</span>')
_AT_THE_END, _NEAR_THE_END = 0.95, 0.85
_MOST_X_LABELS = 4
_LINE_REM = 0.95
"""Each mark's name on a line of its own: two marks may be as near as they like."""
_DAY_S = 86400
_MOST_DOTS, _MOST_TOLD = 40, 60
_GAP_STEPS = 1.5
"""Points further apart than so many steps are not joined: nobody asked in between."""


def legend(keys: Iterable[tuple[str, str, str]]) -> Markup:
    """A class for the key (`faint `, or none), its colour, and what it is for."""
    return Markup('<div class="legend">{}</div>').format(Markup().join(_KEY.format(*key) for key in keys))


def draw_lines(chart: Lines, title: str = "") -> Markup:
    """Legend, if there is more than one line, and plot; "" where there is no value."""
    values = [value for line in chart.lines for value in line.values if value is not None]
    if not values:
        return Markup()
    marks = _marks(chart, values)
    text = chart.text or partial(text_of, kind=chart.kind)
    told = "; ".join(_told(chart, line, text) for line in chart.lines if line.name)
    keys = [("faint " * line.is_faint, line.colour, line.name) for line in chart.lines if line.name]
    first, last = chart.at[0], max(chart.at[-1], chart.at[0] + (chart.step if math.isfinite(chart.step) else 1.0))
    return (legend(keys) if len(chart.lines) > 1 else Markup()) + _frame(
        (part for line in chart.lines for part in _line(chart, line, marks, (first, last), text)),
        [((mark - marks[0]) / (marks[-1] - marks[0]), _mark(mark, chart)) for mark in marks],
        _counted(first, last, chart.counts) if chart.counts else _times(first, last),
        f"{title}: {told}" if title else told,
    )


def draw_histogram(chart: Histogram, title: str = "") -> Markup:
    """Columns, with percentiles marked."""
    marks = count_ticks(max(chart.counts, default=0.0))
    width = _WIDTH / max(1, len(chart.counts))
    names = [f"{chart.edges[n]} – {chart.edges[n + 1]}: {count:,.0f}" for n, count in enumerate(chart.counts)]
    columns = [
        _COLUMN.format(
            f"c{'bad' if index < chart.num_bad else chart.colour}",
            width * index + 0.06 * width,
            _HEIGHT * (1 - count / marks[-1]),
            0.88 * width,
            _HEIGHT * count / marks[-1],
            f"{names[index]} {chart.counted}".strip(),
        )
        for index, count in enumerate(chart.counts)
        if count
    ]
    every = math.ceil(len(chart.counts) / _MOST_X_LABELS) or 1
    edges = [(n / max(1, len(chart.counts)), chart.edges[n]) for n in range(0, len(chart.edges), every)]
    inside = [(name, at) for name, at in chart.marks if 0 <= at <= 1]
    over = [
        _MARK_NAME.format(" before" if at > _NEAR_THE_END else "", 100 * at, _LINE_REM * line, name)
        for line, (name, at) in enumerate(inside)
    ]
    told = ", ".join(name for name, count in zip(names, chart.counts, strict=True) if count)
    drawn = [*columns, *(_MARK.format(_WIDTH * at) for _, at in inside)]
    y_labels = [(mark / marks[-1], f"{mark:,.0f}") for mark in marks]
    return _frame(drawn, y_labels, chart.labels or edges, f"{title}. {told}" if title else told, over)


def _frame(
    drawn: Iterable[Markup],
    y_labels: Sequence[tuple[float, str]],
    x_labels: Sequence[tuple[float, str]],
    told: str,
    over: Iterable[Markup] = (),
) -> Markup:
    """`drawn` in a grid; labels at shares of height (from below) and width; `over` is HTML laid over the drawing."""
    return _FRAME.format(
        Markup().join(_Y.format(100 * share, text) for share, text in y_labels),
        told,
        Markup().join(_GRID.format(_HEIGHT * (1 - share)) for share, _ in y_labels),
        Markup().join(drawn),
        Markup().join(over),
        Markup().join(
            _LAST_X.format(text) if share > _AT_THE_END else _X.format(100 * share, text) for share, text in x_labels
        ),
    )


def _marks(chart: Lines, values: Sequence[float]) -> Sequence[float]:
    """Of the axis at the left; shares end at 100 %."""
    if not chart.begins_at_zero:
        return scale_of(values, 1.0 if chart.kind == "share" else math.inf)
    high = max(values)
    if chart.kind == "share":
        return ticks(min(high, 1.0))
    return byte_ticks(high) if chart.kind == "bytes" else ticks(high, smallest=float(chart.kind == "count"))


def _mark(value: float, chart: Lines) -> str:
    return chart.text(value) if chart.text else mark_of(value, chart.kind)


def _told(chart: Lines, line: Line, text: Callable[[float], str]) -> str:
    """The first and the last value, for readers who can't see the line."""
    known = [(at, value) for at, value in zip(chart.at, line.values, strict=True) if value is not None]
    span = chart.at[-1] - chart.at[0]
    ends = (f"{text(value)} ({_when(chart, at, span)})" for at, value in (known[0], known[-1])) if known else ()
    return f"{line.name} {' → '.join(ends)}"


def _when(chart: Lines, at: float, span: float) -> str:
    return f"{chart.counts} {at:,.0f}" if chart.counts else clock(at, span)


def _line(
    chart: Lines, line: Line, marks: Sequence[float], ends: tuple[float, float], text: Callable[[float], str]
) -> Iterator[Markup]:
    """The path, and what a pointer is told: at dots, or where there are many in columns over the drawing."""
    low, span, (first, last) = marks[0], marks[-1] - marks[0], ends
    places = [
        (_WIDTH * (at - first) / (last - first), _HEIGHT * (1 - (value - low) / span), at, value)
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
    if line.is_faint:
        return
    told = places[:: math.ceil(len(places) / _MOST_TOLD) or 1]
    width = _WIDTH / max(1, len(told))
    for x, y, at, value in told:
        words = f"{_when(chart, at, last - first)} · {line.name}: {text(value)}"
        if len(places) <= _MOST_DOTS:
            yield _DOT.format(line.colour, x, y, words)
        else:
            yield _COLUMN.format("told", min(_WIDTH - width, max(0.0, x - width / 2)), 0, width, _HEIGHT, words)


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
