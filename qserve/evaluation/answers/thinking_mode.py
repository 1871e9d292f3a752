"""Whether the served model thinks in this evaluation, from its chat template or, without one, from an answer."""

from __future__ import annotations

from pathlib import Path

from qserve.errors import UsageError
from qserve.evaluation.answers.thinking import Thinking, resolve_thinking
from qserve.evaluation.preview import seen_thinking
from qserve.evaluation.request import EvalRequest
from qserve.evaluation.server import ServedModel
from qserve.evaluation.tasks import Tasks
from qserve.hub.chat_template import ThinkingTemplate, read_template, thinking_template

__all__ = ["thinking_mode"]


def thinking_mode(served: ServedModel, request: EvalRequest, tasks: Tasks) -> tuple[Thinking, list[str]]:
    """How requests are made, and a sentence for each choice that the user should know of.

    Raises UsageError where the template can't do what --thinking asks for, and for log-likelihoods of choices that a
    model would only reach after a thought.
    """
    if not request.chat:
        return Thinking(is_split=False), []
    template = _template(served)
    if template is None:
        return _without_template(served, request)
    thinking = resolve_thinking(request.thinking, template, served.model)
    notes = [_note(thinking, request)] if template.thinks else []
    of_choices = [spec.name for spec in tasks.specs if not (spec.only_generates or spec.only_reads)]
    if of_choices and template.thinks:
        thinking = _for_choices(thinking, template, request, of_choices)
        notes.append(f"{', '.join(of_choices)}: choices are scored with thinking off")
    return thinking, notes


def _template(served: ServedModel) -> ThinkingTemplate | None:
    folder = Path(served.tokenizer) if served.tokenizer else None
    return thinking_template(read_template(folder)) if folder is not None and folder.is_dir() else None


def _without_template(served: ServedModel, request: EvalRequest) -> tuple[Thinking, list[str]]:
    """A server that does not show its template: its answers tell, and the switch is taken at its word."""
    switch = None if request.thinking == "auto" else {"enable_thinking": request.thinking == "on"}
    on = request.thinking == "on" or (request.thinking == "auto" and seen_thinking(served))
    told = "answers with thinking" if on else "answers without thinking"
    return Thinking(on, switch), [f"{served.model} {told} (its chat template is not known)"]


def _for_choices(thinking: Thinking, template: ThinkingTemplate, request: EvalRequest, tasks: list[str]) -> Thinking:
    if not template.has_switch:
        raise UsageError(
            f"{', '.join(tasks)} scores choices without thinking, but this model always thinks first. Use tasks "
            "that generate, or leave --chat out"
        )
    if request.thinking == "on":
        raise UsageError(
            f"--thinking on: {', '.join(tasks)} scores choices, which is done without thinking. Use tasks that "
            "generate, or --thinking off"
        )
    return thinking


def _note(thinking: Thinking, request: EvalRequest) -> str:
    if not thinking.on:
        return "Thinking is off"
    if request.gen_kwargs.get("temperature") == 0:
        return "Thinking is on and greedy (--gen-kwargs); Qwen3 then repeats itself: its model card recommends sampling"
    return "Thinking is on, sampled by the model's generation_config.json; the answer after the thought is scored"
