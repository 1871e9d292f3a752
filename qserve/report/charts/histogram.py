"""Histograms of latencies."""

from __future__ import annotations

from markupsafe import Markup

from qserve.report.charts.plot import HEIGHT, WIDTH, frame
from qserve.report.charts.scale import ticks
from qserve.report.charts.specs import Histogram
from qserve.report.figures import mark_of, text_of

__all__ = ["draw_histogram"]

_COLUMN = Markup('<rect class="c{}" x="{:.2f}" y="{:.3f}" width="{:.2f}" height="{:.3f}"><title>{}</title></rect>')
_MARK = Markup('<path class="mark" d="M{:.2f} 0V100"/>')
_MARK_NAME = Markup('<span class="mark-name{}" style="left:{:.2f}%;top:{}rem">{}</span>')
_NEAR_THE_END = 0.85
_NUM_X_LABELS = 4
_LINE_REM = 0.95
"""Each mark's name on a line of its own: two marks may be as near as they like."""


def draw_histogram(chart: Histogram) -> Markup:
    """Columns, with percentiles marked. What lies beyond the last bin is in the table."""
    counts, bin_ms = chart.series.counts, chart.bin_ms
    marks = ticks(float(max(counts)), smallest=1.0)
    width = WIDTH / len(counts)
    columns = [
        _COLUMN.format(
            chart.series.colour,
            width * index + 0.06 * width,
            HEIGHT * (1 - count / marks[-1]),
            0.88 * width,
            HEIGHT * count / marks[-1],
            f"{text_of(bin_ms * index, 'ms')} to {text_of(bin_ms * (index + 1), 'ms')}: {count:,} requests",
        )
        for index, count in enumerate(counts)
        if count
    ]
    span = bin_ms * len(counts)
    inside = [(name, at) for name, at in chart.marks if 0 <= at <= span]
    return frame(
        [*columns, *(_MARK.format(WIDTH * at / span) for _, at in inside)],
        [(mark / marks[-1], mark_of(mark, "count")) for mark in marks],
        [(mark / span, mark_of(mark, "ms")) for mark in ticks(span, _NUM_X_LABELS) if mark <= span],
        [
            _MARK_NAME.format(" before" if at > _NEAR_THE_END * span else "", 100 * at / span, _LINE_REM * line, name)
            for line, (name, at) in enumerate(inside)
        ],
    )
