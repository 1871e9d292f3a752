"""Any chart as HTML."""

from __future__ import annotations

from markupsafe import Markup

from qserve.report.charts.bars import draw_bars
from qserve.report.charts.histogram import draw_histogram
from qserve.report.charts.intervals import draw_intervals
from qserve.report.charts.layouts import draw_layouts
from qserve.report.charts.lines import draw_lines
from qserve.report.charts.points import draw_points
from qserve.report.charts.specs import Bars, Chart, Histogram, Intervals, Layouts, Lines, Points

__all__ = ["draw"]


def draw(chart: Chart) -> Markup:
    """Everything in it is escaped."""
    match chart:
        case Bars():
            return draw_bars(chart)
        case Lines():
            return draw_lines(chart)
        case Histogram():
            return draw_histogram(chart)
        case Intervals():
            return draw_intervals(chart)
        case Points():
            return draw_points(chart)
        case Layouts():
            return draw_layouts(chart)
