"""Bytes and counts of parameters, and how people write them. Integers inside, GiB only at the edge."""

from __future__ import annotations

import re

from qserve.errors import UsageError

__all__ = ["GIB", "KIB", "MIB", "format_bytes", "format_parameters", "parse_bytes"]

KIB = 1024
MIB = 1024**2
GIB = 1024**3

_FACTORS = {
    "": 1, "B": 1,
    "K": KIB, "KIB": KIB, "KB": 1000,
    "M": MIB, "MIB": MIB, "MB": 1000**2,
    "G": GIB, "GIB": GIB, "GB": 1000**3,
    "T": 1024 * GIB, "TIB": 1024 * GIB, "TB": 1000**4,
}  # fmt: skip
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


def format_bytes(num_bytes: float) -> str:
    """A size for people: '61.02 GiB', '256 KiB', '-1.50 GiB', '17 B'."""
    for factor, unit in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if abs(num_bytes) >= factor:
            value = num_bytes / factor
            return f"{value:.2f} {unit}" if unit == "GiB" else f"{value:.1f} {unit}".replace(".0 ", " ")
    return f"{num_bytes:.0f} B"
