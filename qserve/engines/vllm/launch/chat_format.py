"""How a checkpoint writes tool calls and thoughts, read from its chat template: the template is what the model learned.

Names are no guide: Qwen3-4B thinks, Qwen3-4B-Instruct-2507 does not, and a fine-tune may be called anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from qserve.engines.vllm.plan.counted_flags import template_flag
from qserve.hub.chat_template import answer_prefix, read_template, thinking_template, tool_format
from qserve.hub.named_templates import given_template

__all__ = ["ChatFormat", "ServedTemplates", "chat_format_of", "served_templates"]


@dataclass(frozen=True)
class ServedTemplates:
    """What vLLM renders conversations by, and those with tools; empty where there is none."""

    default: str
    with_tools: str


def served_templates(folder: Path, words: Sequence[str] = ()) -> ServedTemplates:
    """Those of the checkpoint in `folder`; the one that the user's flags name, `words`, goes before all of them."""
    value = template_flag(words)
    given = given_template(value) if value is not None else None
    if given is not None:
        return ServedTemplates(given.source, given.source)
    return ServedTemplates(read_template(folder), read_template(folder, with_tools=True))


@dataclass(frozen=True)
class ChatFormat:
    """Names of vLLM's parsers; None where the template has no such thing.

    Attributes:
        thinks_by_default: False where the template closes the thoughts at once unless `enable_thinking` is given.
        thinks_in_text: answers may begin with a thought between tags, but not so surely that a parser may take all
            for a thought until it ends.
    """

    tool_parser: str | None
    reasoning_parser: str | None
    thinks_by_default: bool = True
    thinks_in_text: bool = False


def chat_format_of(templates: ServedTemplates) -> ChatFormat:
    """The parsers for what these templates write; none where there is no template.

    - tools: `qserve.hub.chat_template.tool_format`
    - `<think>` (QwQ, Qwen3 but not Instruct-2507, Qwen3.5 and later): qwen3

    Sources: the model cards of those models, https://docs.vllm.ai/en/latest/features/tool_calling/ and
    https://docs.vllm.ai/projects/recipes/en/latest/Qwen/Qwen3.5.html.
    """
    template, tools = templates.default, tool_format(templates.with_tools)
    if not _thinks(template):
        return ChatFormat(tools, None, thinks_in_text=thinking_template(template).thinks)
    return ChatFormat(tools, "qwen3", not answer_prefix(template).rstrip().endswith("</think>"))


def _thinks(template: str) -> bool:
    """Whether answers begin with thoughts. vLLM's parser takes all for thoughts until they end, so this must be sure.

    Either the template opens them itself (QwQ, Thinking-2507), or it has a switch for them and renders those of
    earlier turns (Qwen3, Qwen3.5). A switch alone may only be there for compatibility.
    """
    _, _, answer = template.rpartition("add_generation_prompt")
    opens = "<think>" in answer and "</think>" not in answer
    return opens or ("enable_thinking" in answer and "reasoning_content" in template)
