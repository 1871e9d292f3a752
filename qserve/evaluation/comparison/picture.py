"""The Pareto chart of a comparison as SVG: accuracy over memory, speed as the area of a point."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from qserve.report.charts.labels import Box, least_covering
from qserve.units import format_bytes

__all__ = ["Point", "pareto_svg"]

_WIDTH, _HEIGHT = 760, 440
_LEFT, _RIGHT, _TOP, _BOTTOM = 76, 36, 84, 64
_LARGEST_RADIUS, _SMALLEST_RADIUS = 22.0, 5.0
_NUM_STEPS = 5
_LABEL_GAP, _CAP = 9, 5
_LABEL, _CHARACTER = 34, 7.2
_HIGHEST, _LOWEST = 58, _HEIGHT - _BOTTOM
_FRONT, _BEHIND = "#2563eb", "#94a3b8"
_INK, _PALE, _GRID = "#0f172a", "#64748b", "#e2e8f0"


@dataclass(frozen=True)
class Point:
    """One quantization. `stderr` of the accuracy draws the whisker."""

    name: str
    held_bytes: int
    accuracy: float
    stderr: float
    tokens_per_s: float


@dataclass(frozen=True)
class _Scale:
    """From a figure to a place on the page: `low` at `start`, `high` at `end`, and a line each `step`."""

    low: float
    high: float
    step: float
    start: float
    end: float

    def at(self, value: float) -> float:
        return self.start + (self.end - self.start) * (value - self.low) / (self.high - self.low)

    def ticks(self) -> Iterator[float]:
        for index in range(math.floor((self.high - self.low) / self.step + 1e-6) + 1):
            yield self.low + index * self.step


def pareto_svg(points: Sequence[Point], title: str) -> str:
    """A point that another one beats in memory and accuracy at once is grey, the others are blue and joined."""
    x, y = _memory_scale(points), _accuracy_scale(points)
    front = sorted((one for one in points if not _is_beaten(one, points)), key=lambda one: one.held_bytes)
    joined = " ".join(f"{x.at(one.held_bytes):.1f},{y.at(one.accuracy):.1f}" for one in front)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="system-ui, sans-serif" '
        f'font-size="13" role="img" aria-label="{html.escape(title)}">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" rx="8" fill="#ffffff"/>',
        *_head(title),
        *_axes(x, y),
        f'<polyline fill="none" stroke="{_FRONT}" stroke-opacity="0.35" stroke-width="2.5" points="{joined}"/>',
    ]
    fastest = max(point.tokens_per_s for point in points)
    for point in points:
        parts += _drawn(point, x, y, _radius(point, fastest), _FRONT if point in front else _BEHIND)
    circles = [_circle(x.at(one.held_bytes), y.at(one.accuracy), _radius(one, fastest)) for one in points]
    taken = list(circles)
    for point, circle in zip(points, circles, strict=True):  # last: over every whisker
        _, box = least_covering(_places(point, circle), [one for one in taken if one is not circle])
        taken.append(box)
        parts += _labelled(point, box)
    return "\n".join([*parts, "</svg>\n"])


def _is_beaten(point: Point, points: Sequence[Point]) -> bool:
    return any(
        other.held_bytes <= point.held_bytes
        and other.accuracy >= point.accuracy
        and (other.held_bytes, other.accuracy) != (point.held_bytes, point.accuracy)
        for other in points
    )


def _memory_scale(points: Sequence[Point]) -> _Scale:
    """From nothing to beyond the largest, with room for its label."""
    highest = 1.4 * max(1, *(point.held_bytes for point in points))
    unit = 1024 ** math.floor(math.log(highest / 2, 1024))
    return _Scale(0, highest, unit * _round(highest / unit / _NUM_STEPS), _LEFT, _WIDTH - _RIGHT)


def _accuracy_scale(points: Sequence[Point]) -> _Scale:
    """From a round share below all whiskers to one above, never above 100 %."""
    low = min(point.accuracy - point.stderr for point in points)
    high = max(point.accuracy + point.stderr for point in points)
    step = _round(max(0.01, 1.2 * (high - low)) / _NUM_STEPS)
    bottom = max(0.0, step * math.floor(low / step - 0.25))
    top = min(1.0, step * math.ceil(high / step + 0.25))
    return _Scale(bottom, max(top, bottom + step), step, _HEIGHT - _BOTTOM, _TOP)


def _round(value: float) -> float:
    """The next of 1, 2, 5 × a power of ten: a step that reads well."""
    power = 10.0 ** math.floor(math.log10(value))
    return float(power * next(one for one in (1, 2, 5, 10) if one * power >= value * (1 - 1e-9)))


def _head(title: str) -> list[str]:
    says = "whiskers: ± standard error · area of a point: tokens/s · blue: best trade-offs"
    return [
        f'<text x="{_LEFT}" y="30" font-size="17" font-weight="600" fill="{_INK}">{html.escape(title)}</text>',
        f'<text x="{_LEFT}" y="52" font-size="12" fill="{_PALE}">{says}</text>',
    ]


def _axes(x: _Scale, y: _Scale) -> list[str]:
    bottom, right, middle = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT, (_TOP + _HEIGHT - _BOTTOM) / 2
    digits = 0 if y.step >= 0.01 else 1
    return [
        *(_line(_LEFT, y.at(share), right, y.at(share)) for share in y.ticks()),
        *(_line(x.at(num_bytes), _TOP, x.at(num_bytes), bottom) for num_bytes in x.ticks()),
        *(_text(_LEFT - 10, y.at(share) + 4, "end", f"{100 * share:.{digits}f} %") for share in y.ticks()),
        *(_text(x.at(num_bytes), bottom + 20, "middle", _short(num_bytes)) for num_bytes in x.ticks()),
        _text((_LEFT + right) / 2, _HEIGHT - 16, "middle", "weights in memory"),
        f'<g transform="rotate(-90 20 {middle})">{_text(20, middle, "middle", "accuracy")}</g>',
    ]


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{_GRID}"/>'


def _text(x: float, y: float, anchor: str, text: str, style: str = f'fill="{_PALE}"') -> str:
    """On a halo of the ground's colour, so that a line behind it does not cross it out."""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" paint-order="stroke" stroke="#ffffff" stroke-width="4" '
        f"{style}>{html.escape(text)}</text>"
    )


def _short(num_bytes: float) -> str:
    """Ticks are round: 20 GiB, not 20.00 GiB."""
    if not num_bytes:
        return "0"
    number, unit = format_bytes(round(num_bytes)).split()
    return f"{float(number):g} {unit}"


def _radius(point: Point, fastest: float) -> float:
    return max(_SMALLEST_RADIUS, _LARGEST_RADIUS * math.sqrt(point.tokens_per_s / max(fastest, 1e-9)))


def _drawn(point: Point, x: _Scale, y: _Scale, radius: float, colour: str) -> list[str]:
    cx, cy = x.at(point.held_bytes), y.at(point.accuracy)
    high, low = y.at(min(y.high, point.accuracy + point.stderr)), y.at(max(y.low, point.accuracy - point.stderr))
    return [
        f'<path d="M{cx:.1f} {high:.1f}V{low:.1f}M{cx - _CAP:.1f} {high:.1f}h{2 * _CAP}M{cx - _CAP:.1f} {low:.1f}'
        f'h{2 * _CAP}" stroke="{colour}" stroke-width="2"/>',
        f'<circle cx="{cx:.1f}" cy="{cy:.1f}" r="{radius:.1f}" fill="{colour}" stroke="#ffffff" stroke-width="2"/>',
    ]


def _circle(cx: float, cy: float, radius: float) -> Box:
    return cx - radius, cy - radius, cx + radius, cy + radius


def _places(point: Point, circle: Box) -> list[Box]:
    """Of a label: to the right of its circle, else below, above, to the left, then further off; within the picture."""
    width = _CHARACTER * max(len(point.name), len(_figures(point)))
    left, top, right, bottom = circle
    middle, level = (left + right - width) / 2, (top + bottom - _LABEL) / 2
    corners = [(right + _LABEL_GAP, level), (left - _LABEL_GAP - width, level)]
    for line in range(6):
        corners += [(middle, bottom + _CAP + line * _LABEL), (middle, top - _CAP - (line + 1) * _LABEL)]
    boxes = [(x, y, x + width, y + _LABEL) for x, y in corners]
    inside = [one for one in boxes if one[0] > _LEFT and one[2] < _WIDTH and one[1] >= _HIGHEST and one[3] <= _LOWEST]
    return inside or boxes[:1]


def _figures(point: Point) -> str:
    return f"{100 * point.accuracy:.1f} % · {point.tokens_per_s:,.0f} tok/s"


def _labelled(point: Point, box: Box) -> list[str]:
    left, middle = box[0], (box[1] + box[3]) / 2
    return [
        _text(left, middle - 3, "start", point.name, f'font-size="14" font-weight="600" fill="{_INK}"'),
        _text(left, middle + 14, "start", _figures(point)),
    ]
