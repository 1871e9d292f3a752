"""Stacked bars in HTML."""

from __future__ import annotations

from markupsafe import Markup

from qserve.report.charts.specs import Bar, Bars, Segment

__all__ = ["draw_bars"]

_BAR = Markup('<div class="bar"><span class="bar-label">{}</span><div class="bar-track">{}</div>{}</div>')
_SEGMENT = Markup('<i class="c{}" style="width:{:.3f}%" title="{}: {}"></i>')
_REMARK = Markup('<span class="bar-remark">{}</span>')
_KEY = Markup('<span class="key"><i class="c{}"></i>{}</span>')


def draw_bars(chart: Bars) -> Markup:
    """Legend, then bars."""
    return Markup('<div class="legend">{}</div><div class="bars">{}</div>').format(
        _legend(chart), Markup().join(_bar(bar, chart.maximum) for bar in chart.bars)
    )


def _legend(chart: Bars) -> Markup:
    keys: dict[str, Segment] = {}
    for bar in chart.bars:
        for segment in (one for one in bar.segments if one.value > 0):
            keys.setdefault(segment.name, segment)
    return Markup().join(_KEY.format(segment.colour, name) for name, segment in keys.items())


def _bar(bar: Bar, maximum: float) -> Markup:
    segments = (
        _SEGMENT.format(one.colour, 100 * one.value / max(maximum, 1e-12), one.name, one.text)
        for one in bar.segments
        if one.value > 0
    )
    return _BAR.format(bar.label, Markup().join(segments), _REMARK.format(bar.remark) if bar.remark else "")
