"""Evaluates one item of each kind first, and shows prompt, thought, answer and what is scored.

A wrong template, a thought that never ends, a filter that finds nothing: each shows in a single answer, and costs a day
when it is found in the table at the end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from qserve.errors import UsageError
from qserve.evaluation.answers.thinking import Thinking, split_answer
from qserve.evaluation.environment import LmEvalLog
from qserve.evaluation.harness import evaluate
from qserve.evaluation.request import EvalRequest
from qserve.evaluation.server import ServedModel, post_json
from qserve.evaluation.tasks import Tasks

__all__ = ["Preview", "check_budget", "previews", "seen_thinking"]


@dataclass(frozen=True)
class Preview:
    """The first item of a task, as it was asked and scored."""

    task: str
    prompt: str
    thought: str
    answer: str
    extracted: str
    target: str
    outcome: str
    num_tokens: int | None


def previews(served: ServedModel, request: EvalRequest, tasks: Tasks, thinking: Thinking) -> list[Preview]:
    """The first item of the first task of each kind that generates; none where all are log-likelihoods."""
    first = next((spec for spec in tasks.specs if spec.only_generates), None)
    if first is None:
        return []
    one = replace(request, tasks=(first.name,), limit=1, num_samples=1)
    outcome = evaluate(served, one, None, lambda *_: None, Tasks((first,), tasks.manager), thinking, LmEvalLog())
    return [_preview(task, samples[0]) for task, samples in list(outcome["samples"].items())[:1] if samples]


def check_budget(served: ServedModel, tokens: int) -> None:
    """Ask for an answer with a thinking budget. Raises UsageError in the server's words where it has none."""
    body = {"thinking_token_budget": tokens, "max_tokens": 1}
    try:
        _ask(served, body)
    except UsageError as error:
        raise UsageError(f"--thinking-budget: this server can't end a thought at {tokens:,} tokens: {error}") from None


def seen_thinking(served: ServedModel) -> bool:
    """Whether a server whose template is not known answers with a thought when asked something."""
    answer = _ask(served, {"max_tokens": 256})
    return bool(split_answer(answer, Thinking(), None).thought)


def _ask(served: ServedModel, fields: Mapping[str, Any]) -> dict[str, Any]:
    body = {"model": served.model, "messages": [{"role": "user", "content": "What is 11+22+33?"}], **fields}
    answer = post_json(f"{served.url}/v1/chat/completions", served.api_key, body, is_probe=True)
    try:
        return dict(answer["choices"][0])
    except (LookupError, TypeError, ValueError):
        raise UsageError(f"{served.url}/v1/chat/completions answers without `choices`") from None


def _preview(task: str, sample: Mapping[str, Any]) -> Preview:
    generation = (sample.get("generations") or [{}])[0]
    context = sample["arguments"][0][0]
    return Preview(
        task=task,
        prompt=str(context[0] if isinstance(context, tuple | list) else context),
        thought=generation.get("thought", ""),
        answer=generation.get("text", ""),
        extracted=str(sample["filtered_resps"][0]),
        target=str(sample["target"]),
        outcome=generation.get("outcome", "complete"),
        num_tokens=generation.get("num_tokens"),
    )
