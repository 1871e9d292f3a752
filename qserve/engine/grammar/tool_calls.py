"""Calls of tools as grammars, in the format that the model learned.

hermes        <tool_call>\\n{"name": "f", "arguments": {…}}\\n</tool_call>
qwen3_coder   <tool_call>\\n<function=f>\\n<parameter=key>\\nvalue\\n</parameter>\\n</function>\\n</tool_call>
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from llguidance import LLMatcher

from qserve.engine.grammar.schema import COMPACT, embedded, prepared, unanchored
from qserve.engine.grammar.spec import GrammarSpec
from qserve.hub.chat_template import ToolFormat
from qserve.wire.tools import Tool, ToolChoice

__all__ = ["tool_call_grammar"]


def tool_call_grammar(
    tools: Sequence[Tool], choice: ToolChoice | None, tool_format: ToolFormat, *, is_parallel: bool
) -> GrammarSpec:
    """What binds calls of `tools`: from each `<tool_call>` on, or the whole answer where there must be one."""
    is_named = not isinstance(choice, (str, type(None)))
    callable_ = [tool for tool in tools if is_named is False or tool.function.name == choice.function.name]  # type: ignore[union-attr]
    call = _FORMATS[tool_format](callable_)
    if choice in (None, "auto"):
        return GrammarSpec(_lark(f"start: body\n{call}"), "tool_call", only_one=not is_parallel, param="tools")
    again = "" if is_named or not is_parallel else ' ("\\n<tool_call>" body)*'
    return GrammarSpec(_lark(f'start: "<tool_call>" body{again}\n{call}'), param="tools")


def _lark(rules: str) -> str:
    return LLMatcher.grammar_from_lark("%llguidance {}\n" + rules)


def _schema(tool: Tool) -> dict[str, Any]:
    return {"type": "object", **(tool.function.parameters or {})}


def _hermes(tools: Sequence[Tool]) -> str:
    names = " | ".join(f"call_{number}" for number in range(len(tools)))
    rules = [f'body: "\\n" ({names}) "\\n</tool_call>"']
    for number, tool in enumerate(tools):
        head = json.dumps('{"name": ' + json.dumps(tool.function.name) + ', "arguments": ')
        rules.append(f'call_{number}: {head} args_{number} "}}"\nargs_{number}: {embedded(_schema(tool))}')
    return "\n".join(rules)


def _qwen3_coder(tools: Sequence[Tool]) -> str:
    names = " | ".join(f"call_{number}" for number in range(len(tools)))
    rules = [
        f'body: "\\n<function=" ({names}) "</function>\\n</tool_call>"',
        'text[suffix="\\n</parameter>\\n"]: /(?s:.*)/',
        'any: "<parameter=" /[^>\\n]{1,128}/ ">\\n" text',
    ]
    for number, tool in enumerate(tools):
        rules += _function(f"call_{number}", tool)
    return "\n".join(rules)


def _function(rule: str, tool: Tool) -> list[str]:
    """Parameters in the schema's order; one that is not required may be left out."""
    schema = _schema(tool)
    properties = schema.get("properties")
    head = json.dumps(tool.function.name + ">\n")
    if not isinstance(properties, dict) or not properties:
        return [f"{rule}: {head}" + ("" if schema.get("additionalProperties") is False else " any*")]
    required = schema.get("required") or []
    parts, rules = [], []
    for number, (key, of_key) in enumerate(properties.items()):
        name = f"{rule}_p{number}"
        begin = json.dumps(f"<parameter={key}>\n")
        value, beside = _value(f"{name}_v", of_key if isinstance(of_key, dict) else {}, schema)
        rules += [f"{name}: {begin} {value}", *beside]
        parts.append(name if key in required else f"{name}?")
    return [f"{rule}: {head} {' '.join(parts)}", *rules]


def _value(rule: str, schema: dict[str, Any], root: dict[str, Any]) -> tuple[str, list[str]]:
    """A string is written as it is, everything else as JSON."""
    end = '"\\n</parameter>\\n"'
    choices = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(choices, list) and choices and all(isinstance(one, str) for one in choices):
        return "(" + " | ".join(json.dumps(one, ensure_ascii=False) for one in choices) + ") " + end, []
    if schema.get("type") == "string":
        bound = _bound_text(schema)
        return ("text", []) if bound is None else (f"{bound} {end}", [])
    definitions: dict[str, Any] = {name: root[name] for name in ("$defs", "definitions") if name in root}
    whole = prepared({**definitions, **schema})
    return f"{rule} {end}", [f"{rule}: %json {json.dumps({**whole, 'x-guidance': COMPACT})}"]


def _bound_text(schema: dict[str, Any]) -> str | None:
    """A pattern for the text, where the schema asks for more than text."""
    if isinstance(pattern := schema.get("pattern"), str):
        return "/" + unanchored(pattern).replace("\\/", "/").replace("/", "\\/") + "/"
    if isinstance(most := schema.get("maxLength"), int):
        return f"/(?s:.{{{schema.get('minLength', 0)},{most}}})/"
    return None


_FORMATS: dict[ToolFormat, Callable[[Sequence[Tool]], str]] = {"hermes": _hermes, "qwen3_coder": _qwen3_coder}
