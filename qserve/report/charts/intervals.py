"""Values with standard errors, one row each."""

from __future__ import annotations

from markupsafe import Markup

from qserve.report.charts.specs import Interval, Intervals

__all__ = ["draw_intervals"]

_ROW = Markup(
    '<div class="bar"><span class="bar-label">{}</span><div class="bar-track thin">'
    '<i class="whisker" style="left:{:.3f}%;width:{:.3f}%"></i><i class="spot" style="left:{:.3f}%" title="{}"></i>'
    '</div><span class="bar-remark">{}</span></div>'
)


def draw_intervals(chart: Intervals) -> Markup:
    """A spot for each value, a line for one standard error to either side."""
    return Markup('<div class="bars">{}</div>').format(Markup().join(_row(row, chart) for row in chart.rows))


def _row(row: Interval, chart: Intervals) -> Markup:
    span = max(chart.high - chart.low, 1e-12)

    def place(value: float) -> float:
        return 100 * (min(max(value, chart.low), chart.high) - chart.low) / span

    low, high = place(row.value - row.stderr), place(row.value + row.stderr)
    return _ROW.format(row.label, low, high - low, place(row.value), row.text, row.text)
