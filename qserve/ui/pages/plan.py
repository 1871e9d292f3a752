"""The plan page: the planner as a form."""

from __future__ import annotations

import html
import shlex
from typing import Any

import gradio as gr

from qserve.core.hardware import known_gpus
from qserve.hub.bundled import known_ids
from qserve.planner.engine import engine_names
from qserve.ui.client.planner import PlanQuestion, PlanRefused, ask_planner
from qserve.ui.pages.fields import number_field, whole_number_of
from qserve.ui.pages.page import Page
from qserve.ui.pages.shared import PRIVATE, Shared
from qserve.ui.strings import marked, translate
from qserve.ui.views.command import command_view
from qserve.ui.views.failures import refusal_view
from qserve.ui.views.plan import plan_view

__all__ = ["PlanPage"]

_HERE = "here"
_QUANTS = ("auto", "bf16", "fp16", "fp8", "int8", "4bit")
_FIRST_MODEL, _FIRST_GPU = "Qwen/Qwen3-32B", "rtx-4090"


_APPLY = "qserve.applies(element, trigger); if (false) trigger('select');"


class PlanPage(Page):
    """A form, and the plan for it."""

    name = "plan"

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
        question.model,
        question.gpu or _HERE,
        1,
        question.quant,
        *numbers,
        question.engine or "auto",
        question.reward,
        other,
    ]


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
        return refusal_view(str(refused), language, "failure.plan.refused")
    except TimeoutError:
        return _failure(translate(language, "failure.plan", seconds=60))
    plans = plan.get("plans") or [plan]
    shown = "".join(plan_view(one, language) for one in plans)
    served, machine = plan.get("next_command"), html.escape(str(plan.get("machine") or ""))
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


def _failure(sentence: str) -> str:
    return f'<div class="qs-error" role="alert">{html.escape(sentence)}</div>'
