"""The plan page: the planner as a form."""

from __future__ import annotations

import html
import shlex
from collections.abc import Callable, Mapping
from typing import Any

import gradio as gr

from qserve.core.hardware import known_gpus
from qserve.hub.bundled import known_ids
from qserve.planner.engine import engine_names
from qserve.planner.plan import USABLE_TPOT_MS
from qserve.report.charts.layouts import draw_layouts, layout_points
from qserve.report.charts.specs import Layouts
from qserve.ui.client.planner import PlanQuestion, PlanRefused, ask_planner
from qserve.ui.pages.fields import number_field, whole_number_of
from qserve.ui.pages.shared import PRIVATE, Shared
from qserve.ui.strings import marked, translate
from qserve.ui.views.charts import table, tiles
from qserve.ui.views.command import command_view
from qserve.ui.views.memory import plan_bars
from qserve.units import format_bytes, format_ms, format_rate

__all__ = ["PlanPage"]

_HERE = "here"
_QUANTS = ("auto", "bf16", "fp16", "fp8", "int8", "4bit")
_LATENCIES = (("ttft_ms", "TTFT"), ("tpot_ms", "TPOT"), ("e2e_ms", "E2E"))
_FIRST_MODEL, _FIRST_GPU = "Qwen/Qwen3-32B", "rtx-4090"


_APPLY = "qserve.applies(element, trigger); if (false) trigger('select');"


class PlanPage:
    """Builds the page inside of the current tab."""

    def __init__(self, shared: Shared) -> None:
        with gr.Row(equal_height=False, elem_classes="qs-columns"):
            with gr.Column(scale=2, min_width=300):
                gr.Markdown(marked("plan.intro"))
                form = _form()
                button = gr.Button(marked("plan.plan"), variant="primary", elem_id="qs-plan-button")
            with gr.Column(scale=3, min_width=300):
                result = gr.HTML("", elem_id="qs-plan", apply_default_css=False, js_on_load=_APPLY)
        texts = [one for one in form if isinstance(one, (gr.Textbox, gr.Number))]
        wiring = {"inputs": [shared.language, *form], "outputs": result, **PRIVATE, "show_progress": "minimal"}
        gr.on([button.click, *(one.submit for one in texts)], _planned, **wiring)
        result.select(_applied, None, form, **PRIVATE).then(_planned, **wiring)


def _form() -> list[Any]:
    """The components, in the order of `_planned`'s arguments."""
    model = gr.Dropdown(
        ["demo", *known_ids()],
        value=_FIRST_MODEL,
        label=marked("plan.model"),
        info=marked("plan.model.info"),
        allow_custom_value=True,
        elem_id="qs-plan-model",
    )
    gpu = gr.Dropdown(
        [_HERE, *_gpus(), "none"],
        value=_FIRST_GPU,
        label=marked("plan.gpu"),
        info=marked("plan.gpu.info"),
        allow_custom_value=True,
        elem_id="qs-plan-gpu",
    )
    with gr.Row(elem_classes="qs-numbers"):
        count = gr.Number(1, label=marked("plan.count"), minimum=1, precision=0, min_width=110, elem_id="qs-plan-count")
        quant = gr.Dropdown(
            list(_QUANTS),
            value="auto",
            label=marked("plan.quant"),
            allow_custom_value=True,
            min_width=110,
            elem_id="qs-plan-quant",
        )
        context = number_field("plan.context", "plan.free", "qs-plan-context")
        users = number_field("plan.users", "plan.free", "qs-plan-users")
        engine = gr.Dropdown(["auto", *engine_names()], value="auto", label=marked("plan.engine"), min_width=110)
        reward = gr.Textbox(label=marked("plan.reward"), placeholder=marked("plan.optional"), min_width=110)
    other = gr.Textbox(
        label=marked("plan.other"), placeholder="--kv-cache-dtype fp8 --tensor-parallel-size 2", elem_id="qs-plan-other"
    )
    return [model, gpu, count, quant, context, users, engine, reward, other]


def _applied(event: gr.EventData) -> list[Any]:
    """The form's values for a way out that was clicked."""
    try:
        question = PlanQuestion.from_command(str(event.command))
    except (PlanRefused, ValueError) as refused:
        raise gr.Error(html.escape(str(refused)), print_exception=False) from None
    numbers = [str(one) if one else "" for one in (question.max_model_len, question.max_num_seqs)]
    other = shlex.join(question.other)
    return [
        question.model, question.gpu or _HERE, 1, question.quant, *numbers, question.engine or "auto", question.reward,
        other,
    ]  # fmt: skip


async def _planned(
    language: str,
    model: str,
    gpu: str,
    count: float | None,
    quant: str,
    context: str,
    users: str,
    engine: str,
    reward: str,
    other: str,
) -> str:
    question = PlanQuestion(
        model=(model or "").strip(),
        gpu=_cards((gpu or "").strip(), int(count or 1)),
        quant=(quant or "auto").strip(),
        engine="" if engine == "auto" else engine,
        max_model_len=whole_number_of(context, "plan.context", language),
        max_num_seqs=whole_number_of(users, "plan.users", language),
        reward=(reward or "").strip(),
    )
    if not question.model:
        return _failure(translate(language, "plan.needs_model"))
    try:
        question = question.with_other(other or "")
        plan = await ask_planner(question)
    except PlanRefused as refused:
        return _failure(str(refused))
    except TimeoutError:
        return _failure(translate(language, "failure.plan", seconds=60))
    plans = plan.get("plans") or [plan]
    shown = "".join(_plan_view(one, language) for one in plans)
    served, machine = plan.get("command"), html.escape(str(plan.get("machine") or ""))
    key = "plan.serve.there" if machine else "plan.serve" if served else "plan.command"
    command = command_view(str(served or question.command()), language)
    return f"{shown}<h3>{translate(language, key, machine=machine)}</h3>{command}"


def _gpus() -> list[str]:
    """One name a card; the table knows several."""
    return list({device: name for name, device in reversed(known_gpus().items())}.values())[::-1]


def _cards(gpu: str, count: int) -> str:
    """`rtx-4090` twice is `rtx-4090:2`; what says its own number, and machines without cards, stay as they are."""
    if gpu in ("", _HERE):
        return ""
    return gpu if count == 1 or ":" in gpu or gpu == "none" else f"{gpu}:{count}"


def _plan_view(plan: Mapping[str, Any], language: str) -> str:
    fits = bool(plan.get("fits"))
    is_slow = fits and (plan.get("speed") or {}).get("usable") is False
    colour = "qs-slow" if is_slow else "qs-yes" if fits else "qs-no"
    verdict = translate(language, "plan.slow" if is_slow else "plan.fits" if fits else "plan.fits_not")
    why = html.escape(str(plan.get("why_not") or plan["quant"].get("reason") or ""))
    parts = [
        f'<div class="qs-verdict {colour}" role="status"><b>{verdict}</b> '
        f"<span>{html.escape(str(plan['model']['id']))}</span><p>{why}</p></div>",
        plan_bars(plan, language),
        tiles(
            [
                (translate(language, "plan.weights_are"), str(plan["quant"]["scheme"])),
                (translate(language, "plan.engine_is"), f"{plan['engine']} {plan['engine_version']}"),
                (translate(language, "plan.context_is"), f"{plan['workload']['max_model_len']:,}"),
                (translate(language, "plan.kv_tokens"), f"{plan['kv_cache_tokens']:,}"),
                (translate(language, "plan.at_once"), f"{plan['max_concurrency']:g}"),
            ]
        ),
    ]
    speed = plan.get("speed") or {}
    if speed:
        parts.append(_speed(speed, language))
    if speed.get("alternatives"):
        parts.append(_layouts(speed, language))
    if plan.get("suggestions"):
        heading = translate(language, "plan.faster" if is_slow else "plan.suggestions")
        parts.append(f"<h3>{heading}</h3>{_suggestions(plan['suggestions'], language)}")
    if notes := [*(plan.get("notes") or ()), *speed.get("notes", ())]:
        items = "".join(f"<li>{html.escape(str(note))}</li>" for note in notes)
        parts.append(f'<h3>{translate(language, "plan.notes")}</h3><ul class="qs-notes">{items}</ul>')
    return f'<section class="qs-plan">{"".join(parts)}{_terms(plan, language)}</section>'


def _speed(speed: Mapping[str, Any], language: str) -> str:
    """TTFT, TPOT and the rates with their bands, and the load that they are of."""
    load = speed["load"]
    way = next(name for name in ("rps", "users", "burst", "trace", "concurrency") if name in load)
    arriving = translate(language, f"plan.load.{way}", count=f"{load[way]:g}")
    title = translate(language, "plan.speed", input=load["input"], output=load["output"], load=arriving)
    rate, most = speed["output_tokens_per_s"], speed.get("max_rps")
    figures: list[tuple[str, Mapping[str, Any], str, Callable[[float], str]]]
    figures = [(name, speed[key], "mean", format_ms) for key, name in _LATENCIES]
    figures.append((translate(language, "memory.tokens_per_s"), rate, "value", format_rate))
    if most:
        figures.append((translate(language, "plan.most_requests"), most, "value", format_rate))
    shown = tiles([(f"{name} ({form(one['low'])} – {form(one['high'])})", form(one[key]))
                   for name, one, key, form in figures])  # fmt: skip
    return f"<h3>{html.escape(title)}</h3>{shown}"


def _layouts(speed: Mapping[str, Any], language: str) -> str:
    """What the load was planned for, the picture of all layouts, and their figures."""
    rows = [
        (
            f"{row['layout']}{' ✓' if row['chosen'] else ''}", row["cards"], format_ms(row["ttft_ms"]),
            format_ms(row["tpot_ms"]), format_rate(row["output_tokens_per_s"]),
            "–" if row.get("price_per_hour") is None else f"{row['price_per_hour']:.2f}",
        )
        for row in speed["alternatives"]
    ]  # fmt: skip
    head = [translate(language, f"plan.{key}") for key in ("layout", "cards")]
    drawn = ""
    if len(rows) > 1:
        chart, label = draw_layouts(Layouts(layout_points(speed["alternatives"]))), translate(language, "plan.layouts")
        drawn = f'<div role="region" aria-label="{label}">{chart}</div>'
    layouts = table([*head, "TTFT", "TPOT", translate(language, "memory.tokens_per_s"), "$/h"], rows, (1, 2, 3, 4, 5))
    return f"<h3>{translate(language, 'plan.layouts')}</h3>{drawn}{layouts}"


def _suggestions(suggestions: list[Mapping[str, Any]], language: str) -> str:
    rows = "".join(
        f"<li><b>{html.escape(str(one['change']))}{_pace(one, language)}</b><p>{html.escape(str(one['cost']))}</p>"
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
        (term["name"], format_bytes(term["num_bytes"]), term["formula"])
        for device in plan["devices"][:1]
        for term in device.get("terms") or ()
    ]
    head = [translate(language, f"plan.{key}") for key in ("term", "size", "formula")]
    return table(head, rows, numbers=(1,)) if rows else ""


def _failure(sentence: str) -> str:
    return f'<div class="qs-error" role="alert">{html.escape(sentence)}</div>'
