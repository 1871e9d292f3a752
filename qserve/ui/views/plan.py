"""A plan as HTML: whether it fits, its memory and speed, what would fit, and how each term is computed."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Mapping
from typing import Any

from qserve.charts.html import draw
from qserve.planner.plan import USABLE_TPOT_MS
from qserve.report.sections.layouts import layouts_chart
from qserve.ui.strings import translate
from qserve.ui.strings.sentences import shown
from qserve.ui.views.command import command_view
from qserve.ui.views.memory import plan_bars
from qserve.ui.views.tables import table, tiles
from qserve.units import format_bytes, format_ms, format_rate

__all__ = ["plan_view"]

_SHOWN_OF_A_COMMIT = 12
_LATENCIES = (("ttft_ms", "TTFT"), ("tpot_ms", "TPOT"), ("e2e_ms", "E2E"))


def plan_view(plan: Mapping[str, Any], language: str) -> str:
    """One plan, as `qserve plan --json` writes it."""
    fits = bool(plan.get("fits"))
    is_slow = fits and (plan.get("speed") or {}).get("usable") is False
    may_fit = bool(plan.get("may_fit"))
    colour = "qs-slow" if is_slow or may_fit else "qs-yes" if fits else "qs-no"
    key = "plan.slow" if is_slow else "plan.fits" if fits else "plan.may_fit" if may_fit else "plan.fits_not"
    verdict = translate(language, key)
    why = html.escape(shown(language, str(plan.get("why_not") or plan["quant"].get("reason") or "")))
    parts = [
        f'<div class="qs-verdict {colour}" role="status"><b>{verdict}</b> '
        f"<span>{html.escape(str(plan['model']['id']))}</span><p>{why}</p>{_guess(plan, language)}</div>",
        plan_bars(plan, language),
        tiles(
            [
                (translate(language, "plan.weights_are"), str(plan["quant"]["scheme"])),
                *_revision(plan, language),
                (translate(language, "plan.engine_is"), f"{plan['engine']} {plan['engine_version']}".rstrip()),
                (translate(language, "plan.context_is"), f"{plan['workload']['max_model_len']:,}"),
                (translate(language, "plan.kv_tokens"), f"{plan['kv_cache_tokens']:,}"),
                (translate(language, "plan.at_once"), f"{plan['max_concurrency']:g}"),
            ]
        ),
    ]
    speed = plan.get("speed") or {}
    told = [_speed(speed, language)] if speed else []
    if speed.get("alternatives"):
        told.append(_layouts(speed, language))
    ways = []
    if plan.get("suggestions"):
        heading = translate(language, "plan.faster" if is_slow else "plan.suggestions")
        ways.append(f"<h3>{heading}</h3>{_suggestions(plan['suggestions'], language)}")
    # Of a plan that does not fit the way out comes first, then what speed it would have.
    parts += [*told, *ways] if fits else [*ways, *told]
    if notes := [*(plan.get("notes") or ()), *speed.get("notes", ())]:
        items = "".join(f"<li>{html.escape(shown(language, str(note)))}</li>" for note in notes)
        parts.append(f'<h3>{translate(language, "plan.notes")}</h3><ul class="qs-notes">{items}</ul>')
    return f'<section class="qs-plan">{"".join(parts)}{_terms(plan, language)}</section>'


def _revision(plan: Mapping[str, Any], language: str) -> list[tuple[str, str]]:
    """The commit of the hub that is loaded, as the hub's own pages shorten it; none of a folder or a sibling."""
    commit = plan["model"].get("revision")
    if not commit or plan["quant"].get("checkpoint") != plan["model"]["id"]:
        return []
    return [(translate(language, "plan.revision"), str(commit)[:_SHOWN_OF_A_COMMIT])]


def _guess(plan: Mapping[str, Any], language: str) -> str:
    """That the figures are a guess; empty where they are none."""
    told = str(plan.get("guess") or "")
    return f"<p><b>{html.escape(shown(language, told))}</b></p>" if told else ""


def _speed(speed: Mapping[str, Any], language: str) -> str:
    """TTFT, TPOT and the rates with their bands, and the load that they are of."""
    load = speed["load"]
    way = next(name for name in ("rps", "users", "burst", "trace", "concurrency") if name in load)
    arriving = translate(language, f"plan.load.{way}", count=f"{load[way]:g}")
    key = "plan.speed_if" if speed.get("if_fitted") else "plan.speed"
    title = translate(language, key, input=load["input"], output=load["output"], load=arriving)
    rate, most = speed["output_tokens_per_s"], speed.get("max_rps")
    figures: list[tuple[str, Mapping[str, float], str, Callable[[float], str]]]
    figures = [(name, speed[key], "mean", format_ms) for key, name in _LATENCIES]
    figures.append((translate(language, "memory.tokens_per_s"), rate, "value", format_rate))
    if most:
        figures.append((translate(language, "plan.most_requests"), most, "value", format_rate))
    drawn = tiles(
        [(f"{name} ({form(one['low'])} – {form(one['high'])})", form(one[key])) for name, one, key, form in figures]
    )
    return f"<h3>{html.escape(title)}</h3>{drawn}"


def _layouts(speed: Mapping[str, Any], language: str) -> str:
    """What the load was planned for, the picture of all layouts, and their figures."""
    rows = [
        (
            f"{row['layout']}{' ✓' if row['chosen'] else ''}",
            row["cards"],
            format_ms(row["ttft_ms"]),
            format_ms(row["tpot_ms"]),
            format_rate(row["output_tokens_per_s"]),
            "–" if row.get("price_per_hour") is None else f"{row['price_per_hour']:.2f}",
        )
        for row in speed["alternatives"]
    ]
    head = [translate(language, f"plan.{key}") for key in ("layout", "cards")]
    drawn = ""
    if len(rows) > 1:
        chart = _in_language(draw(layouts_chart(speed["alternatives"])), language)
        label = translate(language, "plan.layouts")
        drawn = f'<div role="region" aria-label="{label}">{chart}</div>'
    layouts = table([*head, "TTFT", "TPOT", translate(language, "memory.tokens_per_s"), "$/h"], rows, (1, 2, 3, 4, 5))
    return f"<h3>{translate(language, 'plan.layouts')}</h3>{drawn}{layouts}"


def _in_language(drawing: str, language: str) -> str:
    """The report's chart with its words in the reader's language."""

    def told(found: re.Match[str]) -> str:
        return found[1] + html.escape(shown(language, html.unescape(found[2])))

    return re.sub(r'(>|aria-label=")([^<>"]+)', told, drawing)


def _suggestions(suggestions: list[Mapping[str, Any]], language: str) -> str:
    rows = "".join(
        f"<li><b>{html.escape(shown(language, str(one['change'])))}{_pace(one, language)}</b>"
        f"<p>{html.escape(shown(language, str(one['cost'])))}</p>"
        f"{command_view(str(one['command']), language, is_applicable=True)}</li>"
        for one in suggestions
    )
    return f'<ol class="qs-suggestions">{rows}</ol>'


def _pace(way: Mapping[str, Any], language: str) -> str:
    """How fast an answer grows after the change."""
    rate, tpot_ms = way.get("output_tokens_per_s"), way.get("tpot_ms")
    if rate is None or tpot_ms is None:
        return ""
    key = "plan.pace" if tpot_ms <= USABLE_TPOT_MS else "plan.pace.slow"
    return f" · {translate(language, key, rate=format_rate(rate), time=format_ms(tpot_ms))}"


def _terms(plan: Mapping[str, Any], language: str) -> str:
    rows = [
        (shown(language, term["name"]), format_bytes(term["num_bytes"]), shown(language, term["formula"]))
        for device in plan["devices"][:1]
        for term in device.get("terms") or ()
    ]
    head = [translate(language, f"plan.{key}") for key in ("term", "size", "formula")]
    return table(head, rows, numbers=(1,)) if rows else ""
