"""A plan as a piece of HTML: a bar for each device, what else was decided, and suggestions. For notebooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from markupsafe import Markup

from qserve.charts.html import draw, stylesheet
from qserve.charts.spec import TERM_COLOURS, Bar, Segment, StackedBars
from qserve.planner.term import COLUMNS
from qserve.units import format_bytes

__all__ = ["plan_html"]

_PAGE = Markup('<div style="font-family:system-ui,sans-serif;max-width:46em"><style>{}</style>{}</div>')
_HEAD = Markup('<div><b style="background:{};color:#fff;padding:0 .5em">{}</b> <b>{}</b></div>')
_LINE = Markup("<div>{}</div>")


def plan_html(plan: Mapping[str, Any], ways: Sequence[str]) -> str:
    """A `<div>` without scripts and without anything to load; words of a checkpoint are escaped.

    `plan` is `Plan.to_json()`, `ways` its suggestions in words.
    """
    verdict, colour = ("fits", "#228833") if plan["fits"] else ("does not fit", "#cc3311")
    facts = f"{plan['model']['id']} · {plan['quant']['scheme']} · {plan['engine']} {plan['engine_version']}"
    lines = [
        _HEAD.format(colour, verdict, facts),
        *([_LINE.format(plan["why_not"])] if plan["why_not"] else []),
        *(_device(device, len(list(same))) for device, same in groupby(plan["devices"])),
        *([_LINE.format(_limits(plan))] if plan["fits"] else []),
        *(_LINE.format(f"· {way}") for way in ways),
        *([Markup("<div><code>{}</code></div>").format(plan["next_command"])] if plan.get("next_command") else []),
    ]
    return str(_PAGE.format(Markup(stylesheet()), Markup().join(lines)))  # noqa: S704 - ours


def _device(device: Mapping[str, Any], count: int) -> Markup:
    parts = [(name, device.get(f"{column}_bytes", 0), TERM_COLOURS[column]) for column, name in COLUMNS.items()]
    parts.append(("others", device.get("used_by_others_bytes", 0), TERM_COLOURS["used_by_others"]))
    total, free = device["total_bytes"], device["free_bytes"]
    segments = tuple(
        Segment(f"{name} {format_bytes(size)}", size, f"{size / max(total, 1):.0%}", colour)
        for name, size, colour in parts
    )
    left = f"{format_bytes(free)} left" if free >= 0 else f"{format_bytes(-free)} missing"
    title = f"{count} × {device['name']}" if count > 1 else device["name"]
    bar = Bar(title, segments, f"{format_bytes(total)} · {left}", float(total) or None)
    return Markup(draw(StackedBars((bar,))))  # noqa: S704 - escaped where it was drawn


def _limits(plan: Mapping[str, Any]) -> str:
    limits = plan["workload"]
    return (
        f"max_model_len {limits['max_model_len']:,} · max_num_seqs {limits['max_num_seqs']:,} · "
        f"KV cache of {plan['kv_cache_tokens']:,} tokens"
    )
