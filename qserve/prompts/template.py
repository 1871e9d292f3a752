"""A checkpoint's chat template, rendered as transformers renders it (`render_jinja_template`), without transformers.

Only the template sees a request's `chat_template_kwargs`; nothing of them reaches a tokenizer.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import jinja2

from qserve.hub.template_environment import template_environment
from qserve.wire.system_turns import one_system

__all__ = ["RESERVED_NAMES", "TEMPLATE_FAILS", "TRIALS", "ChatTemplate", "TemplateRefused", "fault_of"]

RESERVED_NAMES = frozenset(
    {"messages", "conversation", "chat_template", "tokenize", "add_generation_prompt", "continue_final_message"}
)
"""What a request says in fields of its own, and may not say in `chat_template_kwargs`."""

TEMPLATE_FAILS = "of the template fails"
"""What is said of a template that raised what it did not mean to raise."""

TRIALS = tuple(
    [{"role": role, "content": "a"} for role in turns]
    for turns in (("user",), ("system", "user"), ("user", "assistant", "user"))
)
"""Templates may want a turn of the system, or an answer; one that takes none of these conversations takes nothing."""

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
        return template_environment().from_string(self.source)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> str:
        """The conversation as text. Raises TemplateRefused for whatever the template raises; MemoryError.

        System turns at the beginning are joined where the template takes one: other APIs have several places for them.
        """
        said = {"add_generation_prompt": add_generation_prompt, "continue_final_message": continue_final_message}
        try:
            return self._rendered(messages, variables, tools, **said)
        except TemplateRefused:
            if (found := one_system(messages)) is None:
                raise
            system, others = found
            return self._rendered([{"role": "system", "content": system}, *others], variables, tools, **said)

    def _rendered(
        self,
        messages: Sequence[Mapping[str, Any]],
        variables: Mapping[str, Any] | None,
        tools: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool,
        continue_final_message: bool,
    ) -> str:
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
            raise TemplateRefused(_why(error)) from error
        return _cut_at_tag(rendered, messages[-1]["content"]) if continue_final_message else rendered


def fault_of(source: str) -> str | None:
    """The fault of its own by which the template `source` fails on all TRIALS; None where it does not."""
    template, why = ChatTemplate(source), None
    for messages in TRIALS:
        try:
            template.render(messages, add_generation_prompt=True)
        except TemplateRefused as error:
            why = str(error)
        else:
            return None
        if TEMPLATE_FAILS not in why:  # it refuses on purpose
            return None
    return why


def _why(error: Exception) -> str:
    """What a template says when it refuses, and of a fault of its own where in it that is."""
    said = str(error) or type(error).__name__
    if type(error) is jinja2.TemplateError:  # by `raise_exception`, on purpose
        return said
    if isinstance(error, jinja2.TemplateSyntaxError):
        return f"line {error.lineno} {TEMPLATE_FAILS}: {said}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == "<template>"]
    return f"line {lines[-1]} {TEMPLATE_FAILS}: {said}" if lines else said


def _cut_at_tag(rendered: str, final: str) -> str:
    tag = _CONTINUE_TAG.strip()
    if final.strip() not in rendered or tag not in rendered:
        raise TemplateRefused("the template leaves out the final message, which continue_final_message continues")
    place = rendered.rindex(tag)
    if rendered.startswith(_CONTINUE_TAG, place):
        return rendered[:place]
    return rendered[:place].rstrip()  # it trimmed the message
