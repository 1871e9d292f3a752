"""A checkpoint's chat template and its thinking mode, read as text; only the generation prompt is rendered."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from qserve.hub.named_templates import DEFAULT, TOOL_USE, templates_in

__all__ = [
    "ThinkingTemplate",
    "ToolFormat",
    "answer_prefix",
    "read_template",
    "takes_one_system",
    "template_of",
    "thinking_template",
    "tool_format",
]

ToolFormat = Literal["hermes", "qwen3_coder"]
"""How a model writes its calls, by the names of vLLM's parsers."""


@dataclass(frozen=True)
class ThinkingTemplate:
    """How a chat template deals with thoughts.

    Attributes:
        thinks: answers may begin with a thought.
        has_switch: `enable_thinking` among the template's variables turns it on and off.
        on_by_default: it thinks where a request says nothing.
        opens: the template itself writes `<think>`, so that an answer holds the closing tag alone.
    """

    thinks: bool = False
    has_switch: bool = False
    on_by_default: bool = False
    opens: bool = False


def read_template(folder: Path, *, with_tools: bool = False) -> str:
    """The template of the checkpoint or tokenizer in `folder`; empty where there is none.

    `with_tools`: the one for conversations with tools, as transformers chooses it (`get_chat_template`).
    """
    found = {one.name: one.source for one in templates_in(folder)}
    default = found.get(DEFAULT, "")
    return found.get(TOOL_USE, default) if with_tools else default


def template_of(tokenizer: Any, *, with_tools: bool = False) -> str | None:
    """The same of a tokenizer of transformers; None: it has none, or several and none of them for these."""
    try:
        template: str = tokenizer.get_chat_template(tools=[] if with_tools else None)
    except ValueError:
        return None
    return template


def thinking_template(template: str) -> ThinkingTemplate:
    """What `template` says: the part after its last `add_generation_prompt` writes the beginning of an answer."""
    _, _, answer = template.rpartition("add_generation_prompt")
    has_switch = "enable_thinking" in answer
    unasked = answer_prefix(template).rstrip()
    if not has_switch and "<think>" not in answer:
        return ThinkingTemplate()
    thinking_prefix = answer_prefix(template, enable_thinking=True).rstrip()
    return ThinkingTemplate(
        thinks=True,
        has_switch=has_switch,
        on_by_default=not unasked.endswith("</think>"),
        opens=(thinking_prefix if has_switch else unasked).endswith("<think>"),
    )


def tool_format(template: str) -> ToolFormat | None:
    """How calls of tools are written; None where the template knows no tools.

    - `<tool_call>{"name": …}</tool_call>` (Qwen2.5, QwQ, Qwen3): hermes
    - `<function=name><parameter=key>` (Qwen3-Coder, Qwen3-Next-Coder, Qwen3.5 and later): qwen3_coder
    """
    if "<function=" in template:
        return "qwen3_coder"
    return "hermes" if "<tool_call>" in template else None


def takes_one_system(template: str) -> bool:
    """Whether it takes one system turn, at the beginning (Qwen3.5 and later): it raises for others."""
    return re.search(r"raise_exception\(\s*(['\"])(?:(?!\1).)*[Ss]ystem message(?:(?!\1).)*\1", template) is not None


def answer_prefix(template: str, **variables: bool) -> str:
    """What the template itself writes of an answer, with these variables; empty where that can't be told."""
    _, found, rest = template.rpartition("add_generation_prompt")
    try:
        text = ImmutableSandboxedEnvironment().from_string("{%- if " + found + rest)
        return text.render(add_generation_prompt=True, **variables)
    except TemplateError:
        return ""
