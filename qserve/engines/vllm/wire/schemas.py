"""Rewrites the JSON schemas in a body for vLLM so that its grammar library enforces them; grammars must have an end.

What a client calls a schema is promised to be followed. A keyword that the library would leave out is a 400 here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from qserve.engines.vllm.wire.unenforceable import UnenforceableSchema
from qserve.engines.vllm.wire.xgrammar.bounds import check_bounds
from qserve.engines.vllm.wire.xgrammar.schema import schema_for_xgrammar
from qserve.grammar.counts import check_counts, check_counts_within
from qserve.grammar.endless import NO_END, has_an_end
from qserve.grammar.endless_rules import TooDeep, rules_have_an_end
from qserve.grammar.schema import prepared
from qserve.wire.errors import ApiError

__all__ = ["with_enforceable_schemas"]

# By the library; schemas go to any other as they are.
_HELD_BY: Mapping[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "xgrammar": schema_for_xgrammar,
    "guidance": prepared,
}
# Where a schema of the whole answer stands, on any of vLLM's routes.
_PLACES = (
    ("response_format", "json_schema", "schema"),
    ("structured_outputs", "json"),
    ("text", "format", "schema"),
    ("output_config", "format", "schema"),
    ("sampling_params", "structured_outputs", "json"),
)
_GRAMMARS = (("structured_outputs", "grammar"), ("sampling_params", "structured_outputs", "grammar"))
# And the arguments' of a tool, beside `strict`.
_OF_TOOLS = ("parameters", "input_schema")
_NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


def with_enforceable_schemas(body: Mapping[str, Any], library: str) -> dict[str, Any] | None:
    """The body with other schemas; None where they stay as they are.

    Raises ApiError 400 for a keyword that `library` does not hold: always in a schema of the answer, in those of tools
    where they say `"strict": true`; for parameters that are no object, or that no call ends; and for what it would
    compile for too long. And, whatever the library, for a grammar that no text ends.
    """
    for place in _GRAMMARS:
        _check_grammar(body, place)
    held = _HELD_BY.get(library)
    if held is None:
        return None
    check = check_bounds if library == "xgrammar" else check_counts
    for name in ("tools", *{place[0]: None for place in _PLACES}):
        check(_read(body.get(name)), name)
    changed = dict(body)
    for place in _PLACES:
        _replace(changed, place, held)
    if library == "xgrammar" and isinstance(tools := body.get("tools"), list):
        changed["tools"] = [_bound_tool(tool, held) for tool in tools]
    return None if changed == body else changed


def _check_grammar(fields: Mapping[str, Any], place: tuple[str, ...]) -> None:
    grammar: Any = fields
    for name in place:
        grammar = grammar.get(name) if isinstance(grammar, Mapping) else None
    if not isinstance(grammar, str):
        return
    check_counts_within(grammar, place[0])
    try:
        message = None if rules_have_an_end(grammar) else NO_END
    except TooDeep:
        message = "the grammar is nested too deeply"
    if message is not None:
        raise ApiError(400, message, "invalid_grammar", place[0])


def _replace(fields: dict[str, Any], place: tuple[str, ...], held: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """The schema at `place`, if there is one; what is on the way to it is copied."""
    *way, last = place
    for name in way:
        inner = fields.get(name)
        if not isinstance(inner, dict):
            return
        fields[name] = dict(inner)
        fields = fields[name]
    schema = _schema_of(fields.get(last))
    if schema is not None:
        fields[last] = _checked(schema, held, place[0])


def _bound_tool(tool: Any, held: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """A function, as chats have it inside of the tool, as other dialects have it beside `type`."""
    if not isinstance(tool, dict):
        return tool
    if tool.get("type") == "namespace" and isinstance(tool.get("tools"), list):
        return {**tool, "tools": [_bound_tool(inner, held) for inner in tool["tools"]]}
    if isinstance(tool.get("function"), dict):
        return {**tool, "function": _bound_tool(tool["function"], held)}
    schemas = {name: tool[name] for name in _OF_TOOLS if isinstance(tool.get(name), dict)}
    if not schemas:
        # OpenAI's way to say that there are none; the engine would take any.
        is_function = tool.get("type", "function") == "function" and isinstance(tool.get("name"), str)
        takes_none = is_function and tool.get("parameters") is None
        return {**tool, "parameters": _NO_PARAMETERS} if takes_none else tool
    for schema in schemas.values():
        _check_parameters(schema, str(tool.get("name")))
    if tool.get("strict") is not True:
        return tool
    return {**tool, **{name: _checked(schema, held, "tools") for name, schema in schemas.items()}}


def _check_parameters(schema: dict[str, Any], function: str) -> None:
    """In the words of the own engine (`qserve.wire.tools`, `tool_calls`)."""
    kind = schema.get("type", "object")
    if kind != "object":
        message = f"a schema of type {str(kind)[:100]!r} can't describe a function; one of type 'object' is needed"
        raise ApiError(400, f"the parameters of '{function}': {message}", "invalid_value", "tools")
    if not has_an_end({"type": "object", **schema}):
        raise ApiError(400, f"{NO_END}: the parameters of '{function}'", "invalid_grammar", "tools")


def _read(asked: Any) -> Any:
    """With a schema in place of one as text."""
    if isinstance(asked, dict) and isinstance(asked.get("json"), str):
        return {**asked, "json": _schema_of(asked["json"])}
    inner = asked.get("structured_outputs") if isinstance(asked, dict) else None
    return asked if inner is None else {**asked, "structured_outputs": _read(inner)}


def _schema_of(value: Any) -> dict[str, Any] | None:
    """vLLM takes a schema as text, too; what is none is left to it."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return None
    return value if isinstance(value, dict) else None


def _checked(schema: dict[str, Any], held: Callable[[dict[str, Any]], dict[str, Any]], param: str) -> dict[str, Any]:
    try:
        if has_an_end(schema):
            return held(schema)
        message = NO_END
    except UnenforceableSchema as error:
        instead = (
            "leave it out, or serve the model with --engine transformers, which enforces it"
            if error.is_enforced_elsewhere
            else "leave it out, and check it in the answer"
        )
        message = f"vLLM can't enforce {error}: xgrammar would ignore it. Please {instead}"
    except RecursionError:
        message = "the JSON schema is nested too deeply"
    raise ApiError(400, message, "invalid_grammar", param)
