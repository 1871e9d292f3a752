"""The Pareto picture of a comparison as one SVG: accuracy over memory, the size of a point its speed. No library."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass

from qserve.units import format_bytes

__all__ = ["Point", "pareto_svg"]

_WIDTH, _HEIGHT = 640, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 40, 44, 60
_SMALLEST_RADIUS, _LARGEST_RADIUS = 7, 22
_NUM_LINES, _LINE_HEIGHT = 5, 16
_FRONT, _BEHIND = "#2563eb", "#94a3b8"


@dataclass(frozen=True)
class Point:
    """One quantization. `stderr` of the accuracy draws the whisker."""

    name: str
    held_bytes: int
    accuracy: float
    stderr: float
    tokens_per_s: float


def pareto_svg(points: Sequence[Point], title: str) -> str:
    """A point that another one beats in memory and accuracy at once is grey, the others are blue and joined."""
    x_high = 1.15 * max(point.held_bytes for point in points)
    low = min(point.accuracy - point.stderr for point in points)
    high = max(point.accuracy + point.stderr for point in points)
    pad = max(0.02, 0.25 * (high - low))
    y_low, y_high = max(0.0, low - pad), high + pad  # room for the labels, also above 100 %

    def x(num_bytes: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * num_bytes / x_high

    def y(share: float) -> float:
        return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (1 - (share - y_low) / max(1e-9, y_high - y_low))

    front = sorted((one for one in points if not _is_beaten(one, points)), key=lambda one: one.held_bytes)
    fastest = max(point.tokens_per_s for point in points)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="system-ui, sans-serif" '
        f'font-size="13" role="img" aria-label="{html.escape(title)}">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>',
        f'<text x="{_LEFT}" y="24" font-size="15" font-weight="600" fill="#0f172a">{html.escape(title)}</text>',
        *_axes(x, y, x_high, y_low, y_high),
        f'<polyline fill="none" stroke="{_FRONT}" stroke-opacity="0.4" stroke-width="2" points="'
        + " ".join(f"{x(one.held_bytes):.1f},{y(one.accuracy):.1f}" for one in front)
        + '"/>',
    ]
    for point in points:
        parts += _drawn(point, x(point.held_bytes), y, fastest, _FRONT if point in front else _BEHIND)
    return "\n".join([*parts, "</svg>\n"])


def _is_beaten(point: Point, points: Sequence[Point]) -> bool:
    return any(
        other.held_bytes <= point.held_bytes
        and other.accuracy >= point.accuracy
        and (other.held_bytes, other.accuracy) != (point.held_bytes, point.accuracy)
        for other in points
    )


def _axes(x, y, x_high: float, y_low: float, y_high: float) -> list[str]:  # type: ignore[no-untyped-def]
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    parts = []
    for step in range(_NUM_LINES):
        share = y_low + (min(1.0, y_high) - y_low) * step / (_NUM_LINES - 1)
        parts.append(
            f'<line x1="{_LEFT}" x2="{right}" y1="{y(share):.1f}" y2="{y(share):.1f}" stroke="#e2e8f0"/>'
            f'<text x="{_LEFT - 8}" y="{y(share) + 4:.1f}" text-anchor="end" fill="#475569">{100 * share:.1f} %</text>'
        )
        num_bytes = x_high * step / (_NUM_LINES - 1)
        parts.append(
            f'<text x="{x(num_bytes):.1f}" y="{bottom + 20}" text-anchor="middle" fill="#475569">'
            f"{format_bytes(int(num_bytes))}</text>"
        )
    parts.append(
        f'<text x="{(_LEFT + right) / 2}" y="{_HEIGHT - 14}" text-anchor="middle" fill="#0f172a">'
        "weights in memory · size of a point: tokens/s</text>"
    )
    return parts


def _drawn(point: Point, cx: float, y, fastest: float, colour: str) -> list[str]:  # type: ignore[no-untyped-def]
    radius = _SMALLEST_RADIUS + (_LARGEST_RADIUS - _SMALLEST_RADIUS) * math.sqrt(
        point.tokens_per_s / max(fastest, 1e-9)
    )
    cy = y(point.accuracy)
    below = cy + radius + _LINE_HEIGHT
    return [
        f'<line x1="{cx:.1f}" x2="{cx:.1f}" y1="{y(point.accuracy + point.stderr):.1f}" '
        f'y2="{y(max(0.0, point.accuracy - point.stderr)):.1f}" stroke="{colour}" stroke-width="2"/>',
        f'<circle cx="{cx:.1f}" cy="{cy:.1f}" r="{radius:.1f}" fill="{colour}" fill-opacity="0.75"/>',
        f'<text x="{cx:.1f}" y="{cy - radius - 6:.1f}" text-anchor="middle" font-weight="600" fill="#0f172a">'
        f"{html.escape(point.name)}</text>",
        *(
            f'<text x="{cx:.1f}" y="{below + row * _LINE_HEIGHT:.1f}" text-anchor="middle" fill="#475569">{text}</text>'
            for row, text in enumerate((f"{100 * point.accuracy:.1f} %", f"{point.tokens_per_s:.0f} tok/s"))
        ),
    ]
