"""Confidence intervals of counted shares."""

from __future__ import annotations

import math

__all__ = ["wilson_interval"]


def wilson_interval(num_right: int, num_asked: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share. Unlike the normal one it is right at 100 % too."""
    if num_asked == 0:
        return 0.0, 1.0
    z = 1.959964
    share = num_right / num_asked
    centre = share + z * z / (2 * num_asked)
    spread = z * math.sqrt(share * (1 - share) / num_asked + z * z / (4 * num_asked**2))
    scale = 1 + z * z / num_asked
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)
