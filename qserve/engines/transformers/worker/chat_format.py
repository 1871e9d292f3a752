"""How a model writes thoughts and calls of tools, by the tokenizer and its chat template."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from qserve.hub.chat_template import ThinkingTemplate, ToolFormat, template_of, thinking_template, tool_format

__all__ = ["ChatFormat", "chat_format"]

_TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>")


@dataclass(frozen=True)
class ChatFormat:
    """What stands in the answers of one model.

    Attributes:
        thinking: what the chat template says of thoughts.
        think_ids: the tokens that open and close one; None where the template knows no thinking.
        call_ids: the tokens of `<tool_call>`.
        tools: how calls are written; None where the template knows no tools.
        has_special_tags: a tag is a special token, which `skip_special_tokens` would leave out of the text.
    """

    thinking: ThinkingTemplate
    think_ids: tuple[tuple[int, ...], tuple[int, ...]] | None
    call_ids: tuple[int, ...]
    tools: ToolFormat | None
    has_special_tags: bool


def chat_format(tokenizer: Any, vocab_size: int) -> ChatFormat:
    """Of a tokenizer of transformers, and a model of so many tokens: thoughts whose tags it can't write are none."""
    thinking = thinking_template(template_of(tokenizer) or "")
    opened, closed, call, _ = (tuple(tokenizer.encode(tag, add_special_tokens=False)) for tag in _TAGS)
    special = {str(token) for token in tokenizer.all_special_tokens}
    return ChatFormat(
        thinking,
        (opened, closed) if thinking.thinks and max(*opened, *closed) < vocab_size else None,
        call if max(call, default=0) < vocab_size else (),
        tool_format(template_of(tokenizer, with_tools=True) or ""),
        not special.isdisjoint(_TAGS),
    )
