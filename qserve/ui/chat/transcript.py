"""A conversation as Gradio's Chatbot shows it: text as HTML of our own, thinking folded, figures under each answer."""

from __future__ import annotations

import html
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from qserve.ui.chat.conversation import Answer, Conversation
from qserve.ui.chat.markdown import GrowingMarkdown, blocks_of, one_line
from qserve.ui.client.api import ApiFailure
from qserve.ui.strings import translate
from qserve.ui.views.failures import failure_view

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
        answers = turn.answers(side)
        if answers:
            parts = [
                _text(part)
                for rank, count in _distinct(answers)
                for part in _parts(answers, (number, turn.side_of(side), rank), count, language, drafts)
            ]
            messages.append({"role": "assistant", "content": parts})
    return messages


def turn_of(conversation: Conversation, side: int, index: int) -> int:
    """The number of the turn that message `index` of `messages_of` belongs to."""
    for number, turn in enumerate(conversation.turns):
        index -= 2 if turn.answers(side) else 1
        if index < 0:
            return number
    return len(conversation.turns) - 1


def _distinct(answers: Sequence[Answer]) -> list[tuple[int, int]]:
    """Ranks of the answers that say something new, and how many say the same.

    None are compared while one is being written: the page would shrink under its reader.
    """
    are_whole = all(one.finish_reason for one in answers)
    ranks: dict[Any, list[int]] = {}
    for rank, answer in enumerate(answers):
        said = (answer.thinking, answer.text, answer.error, answer.finish_reason == "stopped")
        ranks.setdefault(said if are_whole else rank, []).append(rank)
    return [(same[0], len(same)) for same in ranks.values()]


def _parts(answers: Sequence[Answer], place: Position, count: int, language: str, drafts: Drafts) -> list[str]:
    """Pieces of HTML, blocks apart by an empty line: the browser draws anew only those that changed.

    `count` answers say the same as this one.
    """
    answer, rank = answers[place[-1]], place[-1]
    parts = []
    if answer.thinking:
        parts.append(_thought(answer, place, language, drafts))
    if answer.text.strip():
        parts.append("\n\n".join(_blocks(answer, "text", place, drafts)))
    if answer.error:
        parts.append(one_line(_error(answer, language)))
    figures = one_line(f'<div class="qs-figures">{_figures(answers, place, count, language)}</div>')
    if count == len(answers) > 1 and answer.finish_reason in ("stop", "length"):
        figures += one_line(f'<div class="qs-same">{html.escape(_why_same(answer, count, language))}</div>')
    if rank == 0:
        return [*parts, figures]
    summary = translate(language, "chat.other", rank=rank + 1, count=len(answers))
    if answer.reward is not None:
        summary += " · " + translate(language, "chat.reward", value=f"{answer.reward:.3f}")
    if count > 1:
        summary += " · " + translate(language, "chat.same", count=count)
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


def _error(answer: Answer, language: str) -> str:
    failure = ApiFailure(answer.error, answer.error_status, answer.error_param, answer.error_code)
    kept = f'<button class="qs-write-on">{translate(language, "chat.continue")}</button>' if answer.text else ""
    retry = f'<button class="qs-retry">{translate(language, "failure.retry")}</button>'
    return failure_view(failure, language, buttons=f'<div class="qs-buttons">{kept}{retry}</div>')


def _why_same(answer: Answer, count: int, language: str) -> str:
    """Why best of N gave one answer, and what gives several."""
    if answer.temperature is None:
        return translate(language, "chat.all_same", count=count)
    key = "chat.all_same.greedy" if answer.temperature == 0 else "chat.all_same.at"
    return translate(language, key, count=count, temperature=f"{answer.temperature:g}")


def _figures(answers: Sequence[Answer], place: Position, count: int, language: str) -> str:
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
    if rank == 0 and 1 < count < len(answers):
        figures.append(translate(language, "chat.same", count=count))
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
