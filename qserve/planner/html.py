"""A plan as a piece of HTML: a bar for each device, what else was decided, and suggestions. For notebooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from itertools import groupby
from typing import Any

from qserve.planner.term import COLUMNS
from qserve.units import format_bytes

__all__ = ["plan_html"]

# Colours that are told apart in light and dark, and without red and green.
_COLOURS = {
    "weights": "#4477aa",
    "kv_cache": "#228833",
    "activations": "#ccbb44",
    "cuda_graphs": "#aa3377",
    "runtime": "#66ccee",
    "used_by_others": "#999999",
}
_PARTS = (*COLUMNS.items(), ("used_by_others", "others"))

_HATCHED = (
    "position:absolute;right:0;top:0;bottom:0;border-left:2px solid #cc3311;"
    "background:repeating-linear-gradient(45deg,#fff9 0 4px,transparent 4px 8px)"
)


def plan_html(plan: Mapping[str, Any], ways: Sequence[str]) -> str:
    """A `<div>` without scripts and without anything to load; words of a checkpoint are escaped.

    `plan` is `Plan.to_json()`, `ways` its suggestions in words.
    """
    verdict, colour = ("fits", "#228833") if plan["fits"] else ("does not fit", "#cc3311")
    facts = f"{plan['model']['id']} · {plan['quant']['scheme']} · {plan['engine']} {plan['engine_version']}"
    rows = [
        '<div style="font-family:system-ui,sans-serif;max-width:46em">',
        f'<div><b style="background:{colour};color:#fff;padding:0 .5em">{verdict}</b> <b>{escape(facts)}</b></div>',
        *([f"<div>{escape(plan['why_not'])}</div>"] if plan["why_not"] else []),
        *(_device(device, len(list(same))) for device, same in groupby(plan["devices"])),
        f"<div>{_limits(plan)}</div>" if plan["fits"] else "",
        *(f"<div>· {escape(way)}</div>" for way in ways),
        f"<div><code>{escape(plan['next_command'])}</code></div>" if plan.get("next_command") else "",
        "</div>",
    ]
    return "".join(rows)


def _device(device: Mapping[str, Any], count: int) -> str:
    held = [
        (name, num_bytes, _COLOURS[column])
        for column, name in _PARTS
        if (num_bytes := device.get(f"{column}_bytes", 0)) > 0
    ]
    total = device["total_bytes"]
    whole = max(total, sum(num_bytes for _, num_bytes, _ in held), 1)
    bar = "".join(
        f'<span style="background:{colour};width:{100 * num_bytes / whole:.2f}%" title="{name} '
        f'{format_bytes(num_bytes)}"></span>'
        for name, num_bytes, colour in held
    )
    legend = " ".join(
        f'<span style="white-space:nowrap"><b style="color:{colour}">■</b> {name} {format_bytes(num_bytes)}</span>'
        for name, num_bytes, colour in held
    )
    free = device["free_bytes"]
    left = f"{format_bytes(free)} left" if free >= 0 else f"{format_bytes(-free)} missing"
    over = ""
    if whole > total:
        over = (
            f'<span style="position:absolute;left:{100 * total / whole:.2f}%;right:0;top:0;bottom:0;{_HATCHED}"></span>'
        )
    title = f"{count} × {device['name']}" if count > 1 else device["name"]
    return (
        f'<div style="margin-top:.6em">{escape(title)} · {format_bytes(total)} · {left}</div>'
        f'<div style="display:flex;position:relative;height:1.1em;background:#8883">{bar}{over}'
        f"</div><div><small>{legend}</small></div>"
    )


def _limits(plan: Mapping[str, Any]) -> str:
    limits = plan["workload"]
    return (
        f"max_model_len {limits['max_model_len']:,} · max_num_seqs {limits['max_num_seqs']:,} · "
        f"KV cache of {plan['kv_cache_tokens']:,} tokens"
    )
