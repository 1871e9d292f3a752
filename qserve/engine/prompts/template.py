"""A checkpoint's chat template, rendered as transformers renders it (`render_jinja_template`), without transformers.

Only the template sees a request's `chat_template_kwargs`; nothing of them reaches a tokenizer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any

import jinja2
from jinja2.compiler import CodeGenerator
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

__all__ = ["RESERVED_NAMES", "ChatTemplate", "TemplateRefused"]

RESERVED_NAMES = frozenset(
    {"messages", "conversation", "chat_template", "tokenize", "add_generation_prompt", "continue_final_message"}
)
"""What a request says in fields of its own, and may not say in `chat_template_kwargs`."""

_CONTINUE_TAG = "CONTINUE_FINAL_MESSAGE_TAG "


class TemplateRefused(Exception):
    """The template raised an exception: most raise them on purpose, for roles that they do not know."""


class ChatTemplate:
    """One template, compiled when it is first rendered.

    Args:
        source: Jinja, as tokenizer_config.json or chat_template.jinja holds it.
        special_tokens: what the template finds as `bos_token`, `eos_token`, …

    """

    def __init__(self, source: str, special_tokens: Mapping[str, Any] | None = None) -> None:
        self.source = source
        self._special_tokens = dict(special_tokens or {})

    @cached_property
    def _compiled(self) -> jinja2.Template:
        return _environment().from_string(self.source)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> str:
        """The conversation as text. Raises TemplateRefused for whatever the template raises; MemoryError."""
        conversation = [dict(message) for message in messages]
        if continue_final_message:
            conversation[-1]["content"] += _CONTINUE_TAG
        given = {"tools": None, "documents": None, **self._special_tokens, **(variables or {})}
        if tools:
            given["tools"] = list(tools)
        given.update(messages=conversation, add_generation_prompt=add_generation_prompt and not continue_final_message)
        try:
            rendered = self._compiled.render(given)
        except MemoryError:
            raise  # is no refusal; whoever bounds memory has a sentence of his own
        except Exception as error:  # templates raise what they like
            raise TemplateRefused(str(error) or type(error).__name__) from error
        return _cut_at_tag(rendered, messages[-1]["content"]) if continue_final_message else rendered


def _cut_at_tag(rendered: str, final: str) -> str:
    tag = _CONTINUE_TAG.strip()
    if final.strip() not in rendered or tag not in rendered:
        raise TemplateRefused("the template leaves out the final message, which continue_final_message continues")
    place = rendered.rindex(tag)
    if rendered.startswith(_CONTINUE_TAG, place):
        return rendered[:place]
    return rendered[:place].rstrip()  # it trimmed the message


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlocks, loopcontrols],
        optimized=False,
    )  # fmt: skip
    environment.code_generator_class = _Unfolded
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
    return environment


class _Unfolded(CodeGenerator):
    """What is constant, `{{ 'a' * 10**9 }}`, is computed where it is written, and not for every conversation."""

    def _output_child_to_const(self, node: Any, frame: Any, finalize: Any) -> str:
        if not isinstance(node, jinja2.nodes.TemplateData):
            raise jinja2.nodes.Impossible
        return super()._output_child_to_const(node, frame, finalize)


class _GenerationBlocks(Extension):
    """`{% generation %}` marks what an assistant said, for training; here it is its content."""

    tags = {"generation"}  # noqa: RUF012  # jinja2's own attribute

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_content"), [], [], body).set_lineno(line)

    @staticmethod
    def _content(caller: Any) -> Any:
        return caller()


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """Without jinja2's escapes for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)
