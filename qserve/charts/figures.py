"""Formats values for people."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Literal

from qserve.units import format_bytes, format_count, format_ms, format_parameters, format_rate

__all__ = ["NUMERIC", "Kind", "Value", "clock", "day_and_time", "duration", "mark_of", "moment", "text_of"]

Kind = Literal[
    "text", "prose", "code", "count", "parameters", "number", "bytes", "ms", "s", "share", "change", "rate", "time"
]
"""`prose` sentences, `ms` milliseconds, `s` seconds, `share` and `change` parts of one, `rate` per second, `time`
seconds since 1970."""
Value = str | int | float | None
NUMERIC = frozenset({"count", "parameters", "number", "bytes", "ms", "s", "share", "change", "rate"})
"""Kinds that are aligned right."""
_EMPTY_DECIMALS = re.compile(r"\.0+(?=\D|$)")
_MINUTE_S = 60
_HOUR_S = 3600
_DAY_S = 86400


def text_of(value: Value, kind: Kind) -> str:
    """`value` as `kind`; an en dash for what is not known."""
    if value is None:
        return "–"
    if isinstance(value, str):
        return value
    return _NUMBERS[kind](value)


def mark_of(value: float, kind: Kind) -> str:
    """`value` on an axis: no trailing zeros, and enough digits that two marks never read the same."""
    if value == 0:
        return "0"
    text = f"{value:.3g}/s" if kind == "rate" and value < 1 else text_of(value, kind)
    return _EMPTY_DECIMALS.sub("", text)


def moment(unix_s: float) -> str:
    """`2026-11-21 22:54:08 UTC`."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(unix_s))


def day_and_time(unix_s: float) -> str:
    """`Nov 21 22:54:08`: tells results of one run apart."""
    return time.strftime("%b %d %H:%M:%S", time.gmtime(unix_s))


def clock(unix_s: float, span_s: float) -> str:
    """A label on a time axis that covers `span_s` seconds."""
    form = "%H:%M:%S" if span_s < 10 * _MINUTE_S else "%H:%M" if span_s <= 2 * _DAY_S else "%b %d"
    return time.strftime(form, time.gmtime(unix_s))


def duration(seconds: float) -> str:
    """`12.3 s`, `4 min 5 s`, `3 h 12 min`, `2 d 4 h`."""
    if seconds < _MINUTE_S:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for unit, name, smaller, below in ((_DAY_S, "d", _HOUR_S, "h"), (_HOUR_S, "h", _MINUTE_S, "min")):
        if whole >= unit:
            return f"{whole // unit} {name} {whole % unit // smaller} {below}"
    return f"{whole // _MINUTE_S} min {whole % _MINUTE_S} s"


def _number(value: float) -> str:
    """Four digits that count, and no exponent where people would not write one."""
    if isinstance(value, int) or abs(value) >= 1000:
        return format_count(round(value))
    return f"{value:.4g}"


_NUMBERS: dict[Kind, Callable[[float], str]] = {
    "text": str,
    "prose": str,
    "code": str,
    "count": lambda value: format_count(round(value)),
    "parameters": lambda value: format_parameters(round(value)),
    "number": _number,
    "bytes": format_bytes,
    "ms": format_ms,
    "s": duration,
    "share": lambda value: f"{100 * value:.1f} %",
    "change": lambda value: f"{100 * value:+.1f} %".replace("-", "−"),
    "rate": lambda value: f"{format_rate(value)}/s",
    "time": moment,
}
