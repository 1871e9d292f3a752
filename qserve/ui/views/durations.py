"""Durations and differences as the pages show them."""

from __future__ import annotations

from qserve.units import format_seconds

__all__ = ["difference", "duration", "duration_of_ms"]


def duration(seconds: float) -> str:
    """As `units.format_seconds`; infinity as `∞`, nothing as `0 ms`."""
    if seconds in (0.0, float("inf")):
        return "∞" if seconds else "0 ms"
    return format_seconds(seconds)


def difference(share: float) -> str:
    """`+5.1 %` of 0.051; no sign where it rounds to nothing."""
    percent = round(100 * share, 1)
    return f"{percent:+.1f} %" if percent else "0.0 %"


def duration_of_ms(milliseconds: float) -> str:
    """The same of milliseconds."""
    return duration(milliseconds / 1000)
