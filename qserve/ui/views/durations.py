"""Durations as the pages show them."""

from __future__ import annotations

__all__ = ["duration", "duration_of_ms"]


def duration(seconds: float) -> str:
    """Seconds as people write them: `12.3 ms`, `4.56 s`, `7 min`, `2.1 h`; infinity as `∞`."""
    if seconds == float("inf"):
        return "∞"
    if seconds < 1:
        return f"{1000 * seconds:.3g} ms"
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def duration_of_ms(milliseconds: float) -> str:
    """The same of milliseconds."""
    return duration(milliseconds / 1000)
