"""Pictures as inline SVG and HTML: widths in per cent, so that text keeps its size on a phone. No library, no script.

Every picture has its numbers in words for who can't see it; colours come from the stylesheet's variables.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Bar", "Part", "histogram", "probability_of", "score_bars", "stacked_bars", "table", "tiles"]

_MOST_COLUMNS_OF_A_PHONE = 4
_LEAST_SHARE = 0.002
_NUM_LABELS = 4
_OVERFULL = 1.0005
"""Above this share of its total a bar is one that does not fit; below, rounding."""


@dataclass(frozen=True)
class Part:
    """One stretch of a bar: `kind` names its colour in the stylesheet."""

    kind: str
    name: str
    value: float


@dataclass(frozen=True)
class Bar:
    """A bar of stretches; `total` is what its whole width stands for, None for the longest bar of the picture."""

    label: str
    parts: tuple[Part, ...]
    total: float | None = None
    note: str = ""


def stacked_bars(bars: Sequence[Bar], format_value: Callable[[float], str]) -> str:
    """Bars below each other on one scale, and a legend of what appears in them.

    Where parts exceed their bar's total, the picture is as wide as they are: the total is marked, and what lies beyond
    it is hatched.
    """
    widest = max((bar.total or sum(part.value for part in bar.parts) for bar in bars), default=0.0) or 1.0
    overfull = max((sum(part.value for part in bar.parts) / bar.total for bar in bars if bar.total), default=0.0)
    scale = max(1.0, overfull) if overfull > _OVERFULL else 1.0
    rows = "".join(_stacked(bar, bar.total or widest, scale, format_value) for bar in bars)
    kinds = {part.kind: part.name for bar in bars for part in bar.parts if part.value > 0}
    legend = "".join(f'<li><i class="qs-fill-{kind}"></i>{html.escape(name)}</li>' for kind, name in kinds.items())
    return f'<div class="qs-bars">{rows}<ul class="qs-legend">{legend}</ul></div>'


def score_bars(
    names: Sequence[str], values: Sequence[float], best: int, scale: tuple[float, float] | None = None
) -> str:
    """One bar a value from zero, to the left where it is negative; the width is `scale`, else that of `values`."""
    low, high = scale or (min(0.0, *values), max(0.0, *values))
    span = (high - low) or 1.0
    zero = 100 * -low / span
    rows = []
    for index, (name, value) in enumerate(zip(names, values, strict=True)):
        left, width = (zero, 100 * value / span) if value >= 0 else (zero + 100 * value / span, -100 * value / span)
        kind = "best" if index == best else "other"
        rows.append(
            f'<div class="qs-bar-row"><div class="qs-bar-head"><b>{html.escape(name)}</b><span>{value:.4f}</span></div>'
            f'<svg class="qs-bar" width="100%" height="16" role="img" aria-label="{html.escape(name)}: {value:.4f}">'
            f'<rect x="{left:.2f}%" width="{max(width, 0.4):.2f}%" height="16" rx="3" class="qs-fill-{kind}"/>'
            f'<line x1="{zero:.2f}%" x2="{zero:.2f}%" y1="0" y2="16" class="qs-axis"/></svg></div>'
        )
    return f'<div class="qs-bars">{"".join(rows)}</div>'


def histogram(
    edges: Sequence[str], counts: Sequence[float], title: str, split: int | None = None, counted: str = ""
) -> str:
    """Columns between labelled edges (one more than counts) over a scale of counts from zero.

    Those before column `split` are in the colour of misses. `counted` says in the caption what the columns count.
    """
    top = _round_up(max(counts, default=0.0) or 1.0)
    width = 100 / max(1, len(counts))
    description = ", ".join(
        f"{edges[index]} – {edges[index + 1]}: {count:g}" for index, count in enumerate(counts) if count
    )
    columns = "".join(
        f'<rect x="{index * width + 0.15 * width:.2f}%" width="{0.7 * width:.2f}%" '
        f'y="{100 - 100 * count / top:.1f}%" height="{100 * count / top:.1f}%" rx="2" '
        f'class="qs-fill-{"miss" if split is not None and index < split else "hit"}">'
        f"<title>{html.escape(edges[index])} – {html.escape(edges[index + 1])}: {count:g}</title></rect>"
        for index, count in enumerate(counts)
        if count
    )
    lines = "".join(f'<line x1="0" x2="100%" y1="{y}%" y2="{y}%" class="qs-grid-line"/>' for y in (0, 50))
    step = max(1, math.ceil(len(counts) / _NUM_LABELS))
    ends = {0: ' class="qs-first"', len(counts): ' class="qs-last"'}
    labels = "".join(
        f'<span{ends.get(index, "")} style="left:{index * width:.2f}%">{html.escape(edges[index])}</span>'
        for index in range(0, len(edges), step)
    )
    unit = f" <span>{html.escape(counted)}</span>" if counted else ""
    return (
        f'<figure class="qs-histogram"><figcaption>{html.escape(title)}{unit}</figcaption>'
        f'<div class="qs-plot"><div class="qs-counts" aria-hidden="true"><span>{top:,.0f}</span>'
        f"<span>{top / 2:,g}</span><span>0</span></div>"
        f'<svg width="100%" height="120" role="img" aria-label="{html.escape(title)}. {html.escape(description)}">'
        f'{lines}{columns}<line x1="0" x2="100%" y1="100%" y2="100%" class="qs-axis"/></svg>'
        f'<div class="qs-ticks">{labels}</div></div></figure>'
    )


def _round_up(count: float) -> float:
    """The next of 2, 4, 6, 10, 20, 40, … : an end of the scale whose half is a whole number."""
    power = 10 ** math.floor(math.log10(max(count, 1)))
    return float(next(step * power for step in (1, 2, 4, 6, 10, 20) if step * power >= count and step * power >= 2))


def tiles(figures: Sequence[tuple[str, str]]) -> str:
    """Figures in large type with what they are below."""
    inside = "".join(
        f"<div><b>{html.escape(value)}</b><span>{html.escape(name)}</span></div>" for name, value in figures
    )
    return f'<div class="qs-tiles">{inside}</div>'


def table(head: Sequence[str], rows: Sequence[Sequence[Any]], numbers: Sequence[int] = ()) -> str:
    """Rows of plain text; the columns `numbers` stand at the right.

    Where other columns than the first hold text, or there are more columns than a phone is wide, a phone shows each row
    as a block, a name over each cell. That takes away the roles that a browser gives tables, so they are written out.
    """
    is_stacked = len(head) > _MOST_COLUMNS_OF_A_PHONE or any(column not in numbers for column in range(1, len(head)))
    roles = [f' role="{role}"' if is_stacked else "" for role in ("table", "rowgroup", "row", "columnheader", "cell")]
    of_table, of_group, of_row, of_head, of_cell = roles
    kinds = ['class="qs-number"' if column in numbers else "" for column in range(len(head))]
    names = [f' data-head="{html.escape(name)}"' if is_stacked else "" for name in head]
    first = "".join(
        f'<th scope="col"{of_head} {kind}>{html.escape(name)}</th>' for kind, name in zip(kinds, head, strict=True)
    )
    body = "".join(
        f"<tr{of_row}>"
        + "".join(
            f"<td{of_cell}{name} {kind}>{html.escape(str(cell))}</td>"
            for kind, name, cell in zip(kinds, names, row, strict=True)
        )
        + "</tr>"
        for row in rows
    )
    return (
        f'<div class="qs-table{" qs-stacked" if is_stacked else ""}" tabindex="0" role="region" '
        f'aria-label="{html.escape(", ".join(head))}"><table{of_table}>'
        f"<thead{of_group}><tr{of_row}>{first}</tr></thead><tbody{of_group}>{body}</tbody></table></div>"
    )


def probability_of(margin: float) -> float:
    """Bradley and Terry: the probability that the better one is preferred, from the difference of rewards."""
    return 1 / (1 + math.exp(-margin)) if margin >= 0 else 1 - 1 / (1 + math.exp(margin))


def _stacked(bar: Bar, total: float, scale: float, format_value: Callable[[float], str]) -> str:
    parts, left = [], 0.0
    for part in bar.parts:
        share = part.value / total / scale
        if share >= _LEAST_SHARE:
            parts.append(
                f'<rect x="{100 * left:.3f}%" width="{100 * share:.3f}%" height="22" class="qs-fill-{part.kind}">'
                f"<title>{html.escape(part.name)}: {format_value(part.value)}</title></rect>"
            )
        left += share
    parts_listed = ", ".join(f"{part.name} {format_value(part.value)}" for part in bar.parts if part.value > 0)
    description = html.escape(f"{bar.label}: {parts_listed}")
    over = _beyond(100 / scale, 100 * left) if bar.total and left > _OVERFULL / scale else ""
    return (
        f'<div class="qs-bar-row"><div class="qs-bar-head"><b>{html.escape(bar.label)}</b>'
        f"<span>{html.escape(bar.note)}</span></div>"
        f'<svg class="qs-bar" width="100%" height="22" role="img" aria-label="{description}">'
        f'<rect width="{100 / scale:.3f}%" height="22" class="qs-fill-none"/>{"".join(parts)}{over}</svg></div>'
    )


def _beyond(capacity: float, end: float) -> str:
    """In per cent of the width: hatched from the capacity to the end, and a line where the capacity is."""
    return (
        '<defs><pattern id="qs-hatch" width="7" height="7" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        '<rect width="3.5" height="7" class="qs-hatch"/></pattern></defs>'
        f'<rect x="{capacity:.3f}%" width="{end - capacity:.3f}%" height="22" fill="url(#qs-hatch)"/>'
        f'<rect x="{capacity:.3f}%" width="3" height="22" class="qs-capacity"/>'
    )
