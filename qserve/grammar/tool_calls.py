"""Calls of tools as grammars, in the format that the model learned.

hermes        <tool_call>\\n{"name": "f", "arguments": {…}}\\n</tool_call>
qwen3_coder   <tool_call>\\n<function=f>\\n<parameter=key>\\nvalue\\n</parameter>\\n</function>\\n</tool_call>
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from llguidance import LLMatcher

from qserve.grammar.counts import check_counts, check_counts_within
from qserve.grammar.endless import NO_END, has_an_end
from qserve.grammar.endless_rules import TooDeep, rules_have_an_end
from qserve.grammar.escaped_lark import NotEscapable, escaped_lark
from qserve.grammar.formats import PATTERN_OF_FORMAT
from qserve.grammar.references import followed, within
from qserve.grammar.schema import UncarriedNumber, embedded, unanchored
from qserve.grammar.spec import GrammarSpec
from qserve.grammar.written_values import NULL, text_value
from qserve.hub.chat_template import ToolFormat
from qserve.wire.dialects.responses_tools import INPUT
from qserve.wire.errors import ApiError
from qserve.wire.tools import NamedTool, Tool, ToolChoice, callable_tools, must_call

__all__ = ["answer_or_calls", "tool_call_grammar"]

_END = r"\n</parameter>\n"
_UP_TO_ITS_END = f'[suffix="{_END}"]'
_TEXT_OPENS, _TEXT_ENDS = '{"' + INPUT + '": "', '"}'
# Parameters are bound one by one.
_OF_WHOLE_OBJECTS = (
    "allOf",
    "anyOf",
    "oneOf",
    "not",
    "if",
    "const",
    "enum",
    "patternProperties",
    "propertyNames",
    "minProperties",
    "maxProperties",
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
    "unevaluatedProperties",
    "$ref",
)


def tool_call_grammar(
    tools: Sequence[Tool],
    choice: ToolChoice | None,
    tool_format: ToolFormat,
    *,
    is_parallel: bool,
    larks: Mapping[str, str] = MappingProxyType({}),
) -> GrammarSpec:
    """What binds calls of `tools`: from each `<tool_call>` on, or the whole answer where there must be one.

    `larks`: grammars of the one argument that some of them take, by their names.
    """
    allowed = callable_tools(tools, choice)
    texts = texts_of(allowed, tool_format, larks)
    call = _body_of_call(allowed, tool_format, texts)
    if not must_call(choice):
        grammar = _whole(f"start: body\n{call}", texts)
        return GrammarSpec(grammar, "tool_call", only_one=not is_parallel, param="tools")
    calls = _calls(is_parallel and not isinstance(choice, NamedTool))
    return GrammarSpec(_whole(f"start: {calls}\n{call}", texts), param="tools")


def answer_or_calls(
    answer: GrammarSpec,
    tools: Sequence[Tool],
    tool_format: ToolFormat,
    *,
    is_parallel: bool,
    larks: Mapping[str, str] = MappingProxyType({}),
) -> GrammarSpec:
    """What binds the whole answer where it may be calls of `tools` in place of what `answer` binds, as agents ask."""
    texts = texts_of(tools, tool_format, larks)
    call = _body_of_call(tools, tool_format, texts)
    either = {"lark_grammar": f"%llguidance {{}}\nstart: @answer | {_calls(is_parallel)}\n{call}"}
    first, *others = _grammars(answer.grammar)
    all_of_them = [either, {**first, "name": "answer"}, *others, *_named(texts)]
    return replace(answer, grammar=json.dumps({"grammars": all_of_them}))


def _grammars(grammar: str) -> list[dict[str, Any]]:
    """Those that one of the library's is made of: in JSON, or Lark alone."""
    if not grammar.startswith("{"):
        return [{"lark_grammar": grammar}]
    found: list[dict[str, Any]] = json.loads(grammar)["grammars"]
    return found


def texts_of(tools: Sequence[Tool], tool_format: ToolFormat, larks: Mapping[str, str]) -> dict[str, str]:
    """The grammars of those tools' texts as the format writes them. Raises ApiError 400 for one that it can't hold."""
    names = [tool.function.name for tool in tools if tool.function.name in larks]
    return {name: _written(name, larks[name], tool_format) for name in names}


def _written(name: str, lark: str, tool_format: ToolFormat) -> str:
    check_counts_within(lark, "tools")
    try:
        if not rules_have_an_end(lark):
            raise NotEscapable(NO_END)
        return escaped_lark(lark) if tool_format == "hermes" else lark
    except (NotEscapable, TooDeep) as error:
        why = str(error) or "it is nested too deeply"
        raise ApiError(400, f"the grammar of '{name}': {why}", "invalid_grammar", "tools") from None


def _calls(several: bool) -> str:
    return '"<tool_call>" body' + (' ("\\n<tool_call>" body)*' if several else "")


def _whole(rules: str, texts: Mapping[str, str]) -> str:
    """The library's grammar of the rules, with those of texts beside it."""
    if not texts:
        return _lark(rules)
    return json.dumps({"grammars": [{"lark_grammar": "%llguidance {}\n" + rules}, *_named(texts)]})


def _named(texts: Mapping[str, str]) -> list[dict[str, Any]]:
    return [{"name": f"text_{number}", "lark_grammar": lark} for number, lark in enumerate(texts.values())]


def _body_of_call(tools: Sequence[Tool], tool_format: ToolFormat, texts: Mapping[str, str]) -> str:
    """The rule `body`, from behind `<tool_call>` on. Raises ApiError 400 for arguments without an end."""
    for tool in tools:
        check_counts(tool.function.parameters, "tools")
        if not has_an_end(_schema(tool)):  # the library would look for one for a second
            raise ApiError(400, f"{NO_END}: the parameters of '{tool.function.name}'", "invalid_grammar", "tools")
    try:
        return _FORMATS[tool_format](tools, {name: f"@text_{number}" for number, name in enumerate(texts)})
    except UncarriedNumber as error:
        raise ApiError(400, str(error), "invalid_grammar", "tools") from error


def _lark(rules: str) -> str:
    return LLMatcher.grammar_from_lark("%llguidance {}\n" + rules)


def _schema(tool: Tool) -> dict[str, Any]:
    return {"type": "object", **_parameters(tool)}


def _parameters(tool: Tool) -> dict[str, Any]:
    """A function without them takes none: so OpenAI has it."""
    given = tool.function.parameters
    return {"properties": {}} if given is None else given


def _hermes(tools: Sequence[Tool], texts: Mapping[str, str]) -> str:
    names = " | ".join(f"call_{number}" for number in range(len(tools)))
    rules = [f'body: "\\n" ({names}) "\\n</tool_call>"']
    for number, tool in enumerate(tools):
        head = json.dumps('{"name": ' + json.dumps(tool.function.name) + ', "arguments": ')
        text, rule = texts.get(tool.function.name), f"args_{number}"
        of_text = f"{rule}: {json.dumps(_TEXT_OPENS)} {text} {json.dumps(_TEXT_ENDS)}"
        arguments = embedded(rule, _schema(tool)) if text is None else [of_text]
        rules += [f'call_{number}: {head} {rule} "}}"', *arguments]
    return "\n".join(rules)


def _qwen3_coder(tools: Sequence[Tool], texts: Mapping[str, str]) -> str:
    names = " | ".join(f"call_{number}" for number in range(len(tools)))
    rules = [f'body: "\\n<function=" ({names}) "</function>\\n</tool_call>"', f"text{_UP_TO_ITS_END}: /(?s:.*)/"]
    for number, tool in enumerate(tools):
        text = texts.get(tool.function.name)
        rules += _function(f"call_{number}", tool) if text is None else [_of_text(f"call_{number}", tool, text)]
    return "\n".join(rules)


def _of_text(rule: str, tool: Tool, text: str) -> str:
    head = json.dumps(f"{tool.function.name}>\n<parameter={INPUT}>\n")
    return f'{rule}: {head} {text} "{_END}"'


def _function(rule: str, tool: Tool) -> list[str]:
    """Parameters in the schema's order; one that is not required may be left out."""
    document = _parameters(tool)
    root = followed(document, document)
    if held := [keyword for keyword in _OF_WHOLE_OBJECTS if keyword in root]:
        message = f"the parameters of '{tool.function.name}' ask for '{held[0]}', which this model's calls can't follow"
        raise ApiError(400, f"{message}: they are written one by one", "invalid_grammar", "tools")
    given, required, others = root.get("properties"), root.get("required"), root.get("additionalProperties")
    properties = dict(given) if isinstance(given, dict) else {}
    required = [name for name in required if isinstance(name, str)] if isinstance(required, list) else []
    of_others = others if isinstance(others, dict) else {}
    if others is not False:
        properties = {**properties, **{name: of_others for name in required if name not in properties}}
    parts, rules = [], []
    for number, (key, of_key) in enumerate(properties.items()):
        name = f"{rule}_p{number}"
        value, beside = _value(f"{name}_v", of_key, document)
        rules += [f"{name}: {json.dumps(f'<parameter={key}>' + chr(10), ensure_ascii=False)} {value}", *beside]
        parts.append(name if key in required else f"{name}?")
    if (
        others is True
        or isinstance(others, dict)
        or (others is None and not isinstance(given, dict) and not properties)
    ):
        value, beside = ("text", []) if not isinstance(others, dict) else _value(f"{rule}_o_v", others, document)
        known = "|".join(re.escape(key).replace("/", "\\/") for key in properties)
        key = f"/[^>\\n]{{1,128}}/ & ~/({known})/" if known else "/[^>\\n]{1,128}/"
        rules += [f'{rule}_o: "<parameter=" {rule.upper()}_KEY ">\\n" {value}', f"{rule.upper()}_KEY: {key}", *beside]
        parts.append(f"{rule}_o*")
    return [f"{rule}: {json.dumps(tool.function.name + '>' + chr(10))} {' '.join(parts)}", *rules]


def _value(rule: str, schema: Any, document: dict[str, Any]) -> tuple[str, list[str]]:
    """Up to the end of a parameter: how a rule names it, and the rules beside."""
    text = text_value(schema, document)
    if text is None:
        return f'{rule} "{_END}"', embedded(rule, within(schema, document))
    nothing = [NULL] if text.or_null else []
    if text.choices is not None:
        written = " | ".join(json.dumps(one, ensure_ascii=False) for one in [*text.choices, *nothing])
        return f'({written}) "{_END}"', []
    if not (bounds := _bounds(text.schema)):
        return "text", []
    # An end where the text may not end yet would be taken for more of it.
    bounded = " & ".join([*bounds, r"~/(?s:.*)\n<\/parameter>(?s:.*)/"])
    terminal = " | ".join([f"({bounded})", *map(json.dumps, nothing)])
    return rule, [f"{rule}{_UP_TO_ITS_END}: {rule.upper()}", f"{rule.upper()}: {terminal}"]


def _bounds(schema: Mapping[str, Any]) -> list[str]:
    """Patterns that a text has to match, all of them and as a whole."""
    patterns = (schema.get("pattern"), PATTERN_OF_FORMAT.get(str(schema.get("format"))))
    whole = [_of_whole(pattern) for pattern in patterns if isinstance(pattern, str)]
    found = ["/" + pattern.replace("\\/", "/").replace("/", "\\/") + "/" for pattern in whole]
    least, most = schema.get("minLength", 0), schema.get("maxLength")
    if least or most is not None:
        found.append(f"/(?s:.{{{least},{'' if most is None else most}}})/")
    return found


def _of_whole(pattern: str) -> str:
    """A pattern of JSON Schema is looked for, and anchors alone bind it to the ends."""
    inner = unanchored(pattern)
    before = "" if pattern.startswith("^") else "(?s:.*)"
    after = "" if pattern.removeprefix("^") != inner else "(?s:.*)"
    return f"{before}({inner}){after}"


_FORMATS: dict[ToolFormat, Callable[[Sequence[Tool], Mapping[str, str]], str]] = {
    "hermes": _hermes,
    "qwen3_coder": _qwen3_coder,
}
