"""A conversation as Gradio's Chatbot shows it: Markdown with thinking folded, and figures under each answer."""

from __future__ import annotations

import html
import re
from typing import Any

from qserve.ui.conversation import Answer, Conversation
from qserve.ui.strings import say

__all__ = ["messages_of", "turn_of"]

_FENCE = "```"
_CODE = re.compile(r"(```.*?(?:```|$)|`[^`\n]+`)", re.DOTALL)


def messages_of(conversation: Conversation, side: int, language: str) -> list[dict[str, Any]]:
    """Messages for the Chatbot of one side: per turn one of the user and, once answers began, one of the model."""
    messages = []
    for number, turn in enumerate(conversation.turns):
        messages.append({"role": "user", "content": [_text(_literal(turn.question))]})
        answers = turn.sides[side] if side < len(turn.sides) else ()
        if answers:
            parts = [
                part
                for rank, answer in enumerate(answers)
                for part in _parts(answer, rank, len(answers), f"qs-of-{number}-{side}-{rank}", language)
            ]
            messages.append({"role": "assistant", "content": [_text(part) for part in parts]})
    return messages


def turn_of(conversation: Conversation, side: int, index: int) -> int:
    """The number of the turn that message `index` of `messages_of` belongs to."""
    for number, turn in enumerate(conversation.turns):
        index -= 2 if side < len(turn.sides) and turn.sides[side] else 1
        if index < 0:
            return number
    return len(conversation.turns) - 1


def _parts(answer: Answer, rank: int, count: int, anchor: str, language: str) -> list[str]:
    """Pieces of Markdown, each rendered on its own, so that a fence that is open in one swallows no other."""
    parts = []
    if answer.thinking:
        parts.append(_thought(answer, language))
    if answer.text.strip():
        parts.append(answer.text)
    if answer.error:
        parts.append(f'<div class="qs-error" role="alert">{html.escape(answer.error)}</div>')
    figures = f'<div class="qs-figures">{_figures(answer, rank, count, anchor, language)}</div>'
    if rank == 0:
        return [*parts, figures]
    summary = say(language, "chat.other", rank=rank + 1, count=count)
    if answer.reward is not None:
        summary += " · " + say(language, "chat.reward", value=f"{answer.reward:.3f}")
    return [_folded("qs-other", summary, "\n\n".join([*(_closed(part) for part in parts), figures]))]


def _thought(answer: Answer, language: str) -> str:
    thinks_still = not answer.text.strip() and not answer.finish_reason
    summary = say(language, "chat.thinking_now" if thinks_still else "chat.thoughts")
    return _folded("qs-thought", summary, _closed(answer.thinking), thinks_still)


def _folded(kind: str, summary: str, inside: str, is_open: bool = False) -> str:
    # The empty lines let Markdown go on inside of the element.
    return (
        f'<details class="{kind}"{" open" if is_open else ""}><summary>{html.escape(summary)}</summary>\n\n'
        f"{inside}\n\n</details>"
    )


def _closed(text: str) -> str:
    """With an end for a code fence that is still open."""
    return f"{text}\n{_FENCE}" if text.count(_FENCE) % 2 else text


def _figures(answer: Answer, rank: int, count: int, anchor: str, language: str) -> str:
    if not answer.finish_reason:
        return '<span class="qs-writing">…</span>'
    told = []
    if answer.reward is not None:
        told.append(f"<b>{say(language, 'chat.reward', value=f'{answer.reward:.3f}')}</b>")
    if rank == 0 and count > 1 and answer.reward is not None:
        told.append(say(language, "chat.best", count=count))
    if answer.tokens_per_s is not None:
        told.append(say(language, "chat.tokens_per_s", value=f"{answer.tokens_per_s:.1f}"))
    if answer.ttft_ms is not None:
        told.append(say(language, "chat.ttft", value=f"{answer.ttft_ms:.0f}"))
    if answer.completion_tokens is not None:
        counts = {"prompt": answer.prompt_tokens or 0, "completion": answer.completion_tokens}
        told.append(say(language, "chat.tokens", **counts))
    if answer.finish_reason in ("stopped", "length"):
        told.append(say(language, f"chat.{answer.finish_reason}"))
    if answer.model:
        told.append(html.escape(answer.model))
    copy = f'<button class="qs-copy {anchor}">{say(language, "chat.copy")}</button>' if answer.text else ""
    return " ".join(f"<span>{one}</span>" for one in told) + copy


def _literal(question: str) -> str:
    """What a user wrote is Markdown, but never HTML. Code shows what stands in it anyway."""
    pieces = _CODE.split(question)
    return "".join(piece if index % 2 else html.escape(piece, quote=False) for index, piece in enumerate(pieces))


def _text(text: str) -> dict[str, str]:
    # As a dictionary: Gradio would take a plain string's indentation away, which is code's.
    return {"type": "text", "text": text}
