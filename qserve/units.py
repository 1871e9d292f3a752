"""Bytes, counts, durations and rates, and how people write them. Integers inside, GiB only at the edge."""

from __future__ import annotations

import re

from qserve.errors import UsageError

__all__ = [
    "GIB",
    "KIB",
    "MIB",
    "TOGETHER_MS",
    "counted",
    "format_bytes",
    "format_count",
    "format_flops",
    "format_ms",
    "format_parameters",
    "format_rate",
    "format_seconds",
    "parse_bytes",
]

KIB = 1024
MIB = 1024**2
GIB = 1024**3
TOGETHER_MS = 0.05
"""No engine decodes 20,000 tokens/s in one stream: less time a token means that tokens of an answer came together."""

_FACTORS = {
    "": 1,
    "B": 1,
    "K": KIB,
    "KIB": KIB,
    "KB": 1000,
    "M": MIB,
    "MIB": MIB,
    "MB": 1000**2,
    "G": GIB,
    "GIB": GIB,
    "GB": 1000**3,
    "T": 1024 * GIB,
    "TIB": 1024 * GIB,
    "TB": 1000**4,
}
# Of one card or machine. What follows is arithmetic in 64 bits.
_MOST_BYTES = 1 << 60


def parse_bytes(text: str) -> int:
    """Bytes of '23.6GiB', '24GB', '512M' or '1024'.

    KiB, MiB, GiB (and the bare K, M, G) are powers of 1024; kB, MB, GB are powers of 1000.
    """
    match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*([A-Za-z]*)", text.strip())
    if match is None or match[2].upper() not in _FACTORS:
        raise UsageError(f"{text!r} is not a size in memory; write for example 23.6GiB, 24GB, 512MiB or plain bytes")
    num_bytes = float(match[1]) * _FACTORS[match[2].upper()]
    if num_bytes > _MOST_BYTES:
        raise UsageError(f"{text[:40]!r} is more memory than any machine has; write for example 23.6GiB")
    return round(num_bytes)


def format_parameters(count: int) -> str:
    """How many parameters, for people: '32.76B', '0.60B', '2.02M'."""
    return f"{count / 1e9:.2f}B" if count >= 1e8 else f"{count / 1e6:.2f}M"


def format_bytes(num_bytes: float, decimals: int = 2) -> str:
    """A size for people: '61.02 GiB', '256 KiB', '-1.50 GiB', '17 B'; smaller units have one decimal at most."""
    for factor, unit in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if abs(num_bytes) >= factor:
            value = num_bytes / factor
            shown = f"{value:.{decimals if unit == 'GiB' else min(decimals, 1)}f}"
            return f"{shown} {unit}" if unit == "GiB" else f"{shown} {unit}".replace(".0 ", " ")
    return f"{num_bytes:.0f} B"


def format_count(count: int) -> str:
    """How many, for people: '8,688', '16.4 million'."""
    return f"{count:,}" if abs(count) < 1_000_000 else f"{count / 1e6:,.1f} million"


def counted(count: int, what: str) -> str:
    """How many of what: '1 item', '2,000 items'."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def format_seconds(seconds: float) -> str:
    """A duration with three figures at most: '0.09 ms', '21.4 ms', '7.11 s', '3.2 min', '82 min', '3.2 h'."""
    if seconds < 0.9995:
        return f"{_three_figures(1000 * seconds)} ms"
    if seconds < 119.5:
        return f"{_three_figures(seconds)} s"
    if seconds < 119.5 * 60:
        return f"{seconds / 60:.0f} min" if seconds >= 9.95 * 60 else f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 47.95 * 3600 else f"{seconds / 86400:.1f} days"


def format_ms(milliseconds: float) -> str:
    """The same of milliseconds."""
    return format_seconds(milliseconds / 1000)


def format_rate(per_second: float) -> str:
    """A rate without its unit: '5,563', '42', '4.7', '0.06'."""
    if per_second >= 9.95:
        return f"{per_second:,.0f}"
    return f"{per_second:.1f}" if per_second >= 0.95 else f"{per_second:.2g}"


def format_flops(per_second: float) -> str:
    """Operations per second with three figures: '880 GFLOP/s', '2 TFLOP/s', '2,250 TFLOP/s'."""
    factor, unit = (1e12, "TFLOP/s") if per_second >= 999.5e9 else (1e9, "GFLOP/s")
    value = per_second / factor
    return f"{value:,.0f} {unit}" if value >= 99.95 else f"{value:.3g} {unit}"


def _three_figures(value: float) -> str:
    return f"{value:.0f}" if value >= 99.95 else f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"
