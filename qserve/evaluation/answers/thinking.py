"""What `--thinking` means for a model: what requests carry, and where a thought ends and the answer begins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from qserve.errors import UsageError
from qserve.hub.chat_template import ThinkingTemplate

__all__ = ["Answer", "Outcome", "Thinking", "cut_at_stops", "resolve_thinking", "split_answer"]

Outcome = Literal["complete", "truncated", "empty", "null"]

_OPEN, _CLOSE = "<think>", "</think>"


@dataclass(frozen=True)
class Thinking:
    """How a model is asked.

    Attributes:
        on: answers are expected to begin with a thought.
        template_kwargs: what requests carry as `chat_template_kwargs`; empty: nothing.
        opens: the prompt ends in `<think>`, so a text without a closing tag is all thought.
        has_switch: the template has `enable_thinking`.
        is_split: thoughts are taken out of answers; False for prompts that are no chat, whose text is left as it is.
    """

    on: bool = False
    template_kwargs: Mapping[str, bool] | None = None
    opens: bool = False
    has_switch: bool = False
    is_split: bool = True


@dataclass(frozen=True)
class Answer:
    """One generated answer, as it is scored and as it is kept.

    Attributes:
        text: what the scorer sees: the answer after the thought.
        thought: what stands before it; empty where the model did not think.
        outcome: `truncated` where the token limit ended it, `empty` where nothing is left to score, `null` where the
            server gave no text at all.
        num_tokens: generated ones, thought included; None where the server does not tell.
    """

    text: str
    thought: str
    outcome: Outcome
    num_tokens: int | None


def resolve_thinking(wanted: str, template: ThinkingTemplate, model: str) -> Thinking:
    """`wanted` is on, off or auto (the template's default). Raises UsageError where the template can't do it."""
    if wanted == "on" and not template.thinks:
        raise UsageError(
            f"--thinking on: the chat template of {model} has neither <think> nor enable_thinking, so it can't think; "
            "leave the flag out"
        )
    if wanted == "off" and template.thinks and not template.has_switch:
        raise UsageError(
            f"--thinking off: {model} always thinks: its chat template has no enable_thinking switch; use "
            "--thinking on, or a model without thinking"
        )
    on = template.thinks and (wanted == "on" or (wanted == "auto" and template.on_by_default))
    is_switched = wanted != "auto" and template.has_switch
    return Thinking(on, {"enable_thinking": on} if is_switched else None, template.opens and on, template.has_switch)


def split_answer(choice: Mapping[str, Any], thinking: Thinking, num_tokens: int | None) -> Answer:
    """One choice of an answer, of chat or completions: the thought apart, from its field or from the tags."""
    message = choice.get("message") or {"content": choice.get("text")}
    apart = message.get("reasoning_content") or message.get("reasoning") or ""
    content = message.get("content")
    thought, text = (apart, content or "") if apart else _by_tags(content or "", thinking)
    return Answer(text, thought.strip(), _outcome(choice, content, apart, text), num_tokens)


def _by_tags(content: str, thinking: Thinking) -> tuple[str, str]:
    if not thinking.is_split:
        return "", content
    head, closed, tail = content.rpartition(_CLOSE)
    if closed:
        return head.strip().removeprefix(_OPEN), tail.lstrip("\n")
    begins = content.lstrip().startswith(_OPEN)
    if begins or thinking.opens:
        return content.strip().removeprefix(_OPEN), ""
    return "", content


def _outcome(choice: Mapping[str, Any], content: str | None, apart: str, text: str) -> Outcome:
    if choice.get("finish_reason") == "length":
        return "truncated"
    if content is None and not apart:
        return "null"
    return "complete" if text.strip() else "empty"


def cut_at_stops(text: str, stops: tuple[str, ...]) -> str:
    """`text` up to the first of `stops`. For answers after a thought: sent to the server they would end the thought."""
    ends = [found for stop in stops if stop and (found := text.find(stop)) >= 0]
    return text[: min(ends)] if ends else text
