"""A conversation as Gradio's Chatbot shows it: text as HTML of our own, thinking folded, figures under each answer."""

from __future__ import annotations

import html
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from qserve.ui.chat.conversation import Answer, Conversation
from qserve.ui.chat.markdown import GrowingMarkdown, blocks_of, one_line
from qserve.ui.strings import translate

__all__ = ["Drafts", "messages_of", "new_drafts", "turn_of"]

Position = tuple[int, int, int]
"""Where an answer stands: the numbers of its turn, its side and its rank."""
Drafts = defaultdict[tuple[int, int, int, str], GrowingMarkdown]
"""What is rendered of answers that are being written, by place and kind of text."""


def new_drafts() -> Drafts:
    """Nothing yet."""
    return defaultdict(GrowingMarkdown)


def messages_of(
    conversation: Conversation, side: int, language: str, drafts: Drafts | None = None
) -> list[dict[str, Any]]:
    """Messages for the Chatbot of one side: per turn one of the user and, once answers began, one of the model.

    With `drafts`, kept by whoever draws an answer again and again as it grows, its finished part is rendered once.
    """
    drafts = drafts if drafts is not None else new_drafts()
    messages = []
    for number, turn in enumerate(conversation.turns):
        messages.append({"role": "user", "content": [_text("\n\n".join(blocks_of(turn.question)))]})
        answers = turn.sides[side] if side < len(turn.sides) else ()
        if answers:
            parts = [
                _text(part)
                for rank in range(len(answers))
                for part in _parts(answers, (number, side, rank), language, drafts)
            ]
            messages.append({"role": "assistant", "content": parts})
    return messages


def turn_of(conversation: Conversation, side: int, index: int) -> int:
    """The number of the turn that message `index` of `messages_of` belongs to."""
    for number, turn in enumerate(conversation.turns):
        index -= 2 if side < len(turn.sides) and turn.sides[side] else 1
        if index < 0:
            return number
    return len(conversation.turns) - 1


def _parts(answers: Sequence[Answer], place: Position, language: str, drafts: Drafts) -> list[str]:
    """Pieces of HTML, blocks apart by an empty line: the browser draws anew only those that changed."""
    answer, rank = answers[place[-1]], place[-1]
    parts = []
    if answer.thinking:
        parts.append(_thought(answer, place, language, drafts))
    if answer.text.strip():
        parts.append("\n\n".join(_blocks(answer, "text", place, drafts)))
    if answer.error:
        parts.append(one_line(f'<div class="qs-error" role="alert">{html.escape(answer.error)}</div>'))
    figures = one_line(f'<div class="qs-figures">{_figures(answers, place, language)}</div>')
    if rank == 0:
        return [*parts, figures]
    summary = translate(language, "chat.other", rank=rank + 1, count=len(answers))
    if answer.reward is not None:
        summary += " · " + translate(language, "chat.reward", value=f"{answer.reward:.3f}")
    return [_folded("qs-other", summary, [*parts, figures])]


def _blocks(answer: Answer, kind: str, place: Position, drafts: Drafts) -> Sequence[str]:
    """The answer's `text` or `thinking` as blocks of HTML."""
    text: str = getattr(answer, kind)
    return blocks_of(text) if answer.finish_reason else drafts[(*place, kind)].blocks_of(text)


def _thought(answer: Answer, place: Position, language: str, drafts: Drafts) -> str:
    thinks_still = not answer.text.strip() and not answer.finish_reason
    summary = translate(language, "chat.thinking_now" if thinks_still else "chat.thoughts")
    return _folded("qs-thought", summary, _blocks(answer, "thinking", place, drafts), thinks_still)


def _folded(kind: str, summary: str, inside: Sequence[str], is_open: bool = False) -> str:
    # No empty line may stand in it: the browser's parser would take the rest for Markdown.
    return (
        f'<details class="{kind}"{" open" if is_open else ""}><summary>{html.escape(summary)}</summary>'
        f"{''.join(inside).replace(chr(10), '')}</details>"
    )


def _figures(answers: Sequence[Answer], place: Position, language: str) -> str:
    answer, rank = answers[place[-1]], place[-1]
    if not answer.finish_reason:
        return '<span class="qs-writing">…</span>'
    figures = []
    if answer.reward is not None:
        figures.append(f"<b>{translate(language, 'chat.reward', value=f'{answer.reward:.3f}')}</b>")
    # An answer that was continued may be the best no longer.
    rewards = [one.reward for one in answers if one.reward is not None]
    if rank == 0 and len(answers) > 1 and rewards and answer.reward == max(rewards):
        figures.append(translate(language, "chat.best", count=len(answers)))
    if answer.tokens_per_s is not None:
        figures.append(translate(language, "chat.tokens_per_s", value=f"{answer.tokens_per_s:.1f}"))
    if answer.ttft_ms is not None:
        figures.append(translate(language, "chat.ttft", value=f"{answer.ttft_ms:.0f}"))
    if answer.completion_tokens is not None:
        counts = {"prompt": answer.prompt_tokens or 0, "completion": answer.completion_tokens}
        figures.append(translate(language, "chat.tokens", **counts))
    if answer.finish_reason in ("stopped", "length"):
        figures.append(translate(language, f"chat.{answer.finish_reason}"))
    if answer.model:
        figures.append(html.escape(answer.model))
    anchor = "-".join(map(str, place))
    copy = f'<button class="qs-copy qs-of-{anchor}">{translate(language, "chat.copy")}</button>' if answer.text else ""
    return " ".join(f"<span>{one}</span>" for one in figures) + copy


def _text(text: str) -> dict[str, str]:
    # As a dictionary: Gradio would take a plain string's indentation away, which is code's.
    return {"type": "text", "text": text}
