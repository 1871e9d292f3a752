"""Any chart as HTML, and bars of every sort. Markup escapes whatever is formatted into it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib.resources import files

from markupsafe import Markup

from qserve.charts.plots import draw_histogram, draw_lines, legend
from qserve.charts.spec import Bar, Chart, Colour, Histogram, Intervals, Lines, Scatter, SignedBars, StackedBars
from qserve.charts.svg import draw_scatter

__all__ = ["draw", "figure", "stylesheet"]

_CHART = Markup('<div class="chart">{}</div>')
_FIGURE = Markup('<figure class="chart"><figcaption>{}{}</figcaption>{}</figure>')
_ROW = Markup(
    '<div class="bar"><span class="bar-label">{}</span>'
    '<span class="bar-track {}" role="img" aria-label="{}">{}</span><span class="bar-remark">{}</span></div>'
)
_PART = Markup('<i class="{}" style="left:{:.3f}%;width:{:.3f}%" title="{}"></i>')
_OVERFULL = 1.0005
"""Above this share of its total a bar is one that does not fit; below, rounding."""
_SMALLEST = 1e-12


@cache
def stylesheet() -> str:
    """`charts.css`, without which nothing drawn here is readable."""
    return files("qserve.charts").joinpath("charts.css").read_text(encoding="utf-8")


def draw(chart: Chart) -> str:
    """The chart by itself. It needs `stylesheet`."""
    return str(_CHART.format(_drawn(chart)))


def figure(title: str, chart: Chart, counted: str = "") -> str:
    """The chart below its title. `counted` says in the title what columns count."""
    unit = Markup(" <span>{}</span>").format(counted) if counted else ""
    return str(_FIGURE.format(title, unit, _drawn(chart, title)))


def _drawn(chart: Chart, title: str = "") -> Markup:
    match chart:
        case StackedBars():
            return _stacked(chart)
        case SignedBars():
            return _rows(_signed(chart))
        case Intervals():
            return _rows(_intervals(chart))
        case Lines():
            return draw_lines(chart, title)
        case Histogram():
            return draw_histogram(chart, title)
        case Scatter():
            return draw_scatter(chart)


def _rows(rows: Iterator[Markup]) -> Markup:
    return Markup('<div class="bars">{}</div>').format(Markup().join(rows))


def _stacked(chart: StackedBars) -> Markup:
    """Legend, then bars. Where one exceeds its total all are drawn on a scale that has room for it."""
    widest = chart.maximum or max((bar.total or bar.length for bar in chart.bars), default=0.0) or _SMALLEST
    overfull = max((bar.length / bar.total for bar in chart.bars if bar.total), default=0.0)
    scale = overfull if overfull > _OVERFULL else 1.0
    keys: dict[str, Colour] = {}
    for segment in (one for bar in chart.bars for one in bar.segments if one.value > 0):
        keys.setdefault(segment.name, segment.colour)
    bars = (_bar(bar, scale * (bar.total or widest), 1 / scale) for bar in chart.bars)
    return legend(("", colour, name) for name, colour in keys.items()) + _rows(bars)


def _bar(bar: Bar, width: float, room: float) -> Markup:
    """`width` is the value at the right end, `room` the share of it that there is."""
    parts, left = [], 0.0
    shown = [segment for segment in bar.segments if segment.value > 0]
    for one in shown:
        share = 100 * one.value / width
        parts.append(_PART.format(f"c{one.colour}", left, share, f"{one.name}: {one.text}"))
        left += share
    if bar.total and bar.length > _OVERFULL * bar.total:
        parts.append(_PART.format("beyond", 100 * room, left - 100 * room, ""))
    if room < 1:
        parts.append(Markup('<i class="outside" style="left:{:.3f}%"></i>').format(100 * room))
    told = f"{bar.label}: {', '.join(f'{one.name} {one.text}' for one in shown)}"
    return _ROW.format(bar.label, "", told, Markup().join(parts), bar.remark)


def _signed(chart: SignedBars) -> Iterator[Markup]:
    span = (chart.high - chart.low) or 1.0
    zero = 100 * -chart.low / span
    axis = Markup('<i class="axis" style="left:{:.2f}%"></i>').format(zero)
    for index, (name, value) in enumerate(chart.values):
        width = 100 * abs(value) / span
        left = zero if value >= 0 else zero - width
        part = _PART.format("cgood" if index == chart.best else "cpale", left, max(width, 0.4), "")
        yield _ROW.format(name, "", f"{name}: {value:.4f}", part + axis, f"{value:.4f}")


def _intervals(chart: Intervals) -> Iterator[Markup]:
    """A spot for each value, a line for one standard error to either side."""
    span = max(chart.high - chart.low, _SMALLEST)

    def place(value: float) -> float:
        return 100 * (min(max(value, chart.low), chart.high) - chart.low) / span

    for row in chart.rows:
        low, high = place(row.value - row.stderr), place(row.value + row.stderr)
        spot = Markup('<i class="spot" style="left:{:.3f}%"></i>').format(place(row.value))
        inside = _PART.format("whisker", low, high - low, row.text) + spot
        yield _ROW.format(row.label, "thin", f"{row.label}: {row.text}", inside, row.text)
