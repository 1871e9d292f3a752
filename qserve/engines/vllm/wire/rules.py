"""What vLLM takes and does not do as asked: refused in the words of the own engine.

Read from vLLM 0.32: a tool of any type and name passes, as `web_search` does, though nothing would run it; a call of
one of two functions with the same name is ambiguous; and with `ignore_eos` an answer continues after its structure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError

from qserve.wire.dialects.responses_tools import flat_name
from qserve.wire.errors import ApiError
from qserve.wire.schema import CacheSalt
from qserve.wire.tools import ToolName

__all__ = ["check_salt", "check_structure", "check_tools"]

_NAME = TypeAdapter(ToolName)
_SALT = TypeAdapter(CacheSalt)


@dataclass(frozen=True)
class _ToolRule:
    """What the tools of a route are.

    Attributes:
        kinds: the types of tools that the client runs; None among them: a type may be left out.
        name: the place of a tool's name.
        has_namespaces: whether a tool may be a namespace of functions.
    """

    kinds: tuple[str | None, ...]
    name: tuple[str, ...] = ("name",)
    has_namespaces: bool = False


# By the beginning of the route.
_TOOLS: Mapping[str, _ToolRule] = {
    "/v1/chat/completions": _ToolRule(("function",), ("function", "name")),
    "/v1/responses": _ToolRule(("function", "custom"), has_namespaces=True),
    "/v1/messages": _ToolRule(("custom", None)),
}
# vLLM shows the model the functions of a namespace, and nothing else that is in it.
_IN_NAMESPACE = _ToolRule(("function",))
# The place of a structure of the answer: an object with a type, or there at all.
_TYPED = (("response_format",), ("text", "format"), ("output_config", "format"))
_MUST_CALL = ("required", "any")


def check_tools(path: str, body: Mapping[str, Any]) -> None:
    """Raises ApiError 400 for a tool that the client would not run, for a wrong name, and for one that comes twice."""
    rule = next((rule for begin, rule in _TOOLS.items() if path.startswith(begin)), None)
    tools = body.get("tools")
    if rule is None or not isinstance(tools, list):
        return
    names: set[str] = set()
    for where, name in _names(tools, rule, "tools"):
        try:
            _NAME.validate_python(name, strict=True)
        except ValidationError:
            message = f"'{where}' must be a name of 1 to 128 letters, digits, '_', '-', '.' and ':'"
            raise _refusal(message, "tools") from None
        if name in names:
            raise _refusal(f"'tools' has two functions named '{name}'", "tools")
        names.add(name)


def _names(tools: list[Any], rule: _ToolRule, path: str) -> Iterator[tuple[str, Any]]:
    """Of each tool the place of its name, and the name that the model reads."""
    for index, tool in enumerate(tools):
        if not isinstance(tool, dict):
            raise _refusal(f"'{path}[{index}]' must be an object", "tools")
        kind = tool.get("type")
        if kind == "namespace" and rule.has_namespaces:
            yield from _of_namespace(tool, f"{path}[{index}]")
        elif kind not in rule.kinds:
            named = "without a type" if kind is None else f"of type '{str(kind)[:40]}'"
            raise _refusal(f"the server has no tool {named}; describe functions, which the client runs", "tools")
        else:
            yield ".".join((f"{path}[{index}]", *rule.name)), _at(tool, rule.name)


def _of_namespace(tool: Mapping[str, Any], path: str) -> Iterator[tuple[str, Any]]:
    name, inner = tool.get("name"), tool.get("tools")
    if not isinstance(inner, list):
        raise _refusal(f"'{path}.tools' must be a list of functions", "tools")
    for where, of_function in _names(inner, _IN_NAMESPACE, f"{path}.tools"):
        are_names = isinstance(name, str) and isinstance(of_function, str)
        yield where, flat_name(str(name), str(of_function)) if are_names else None


def check_salt(body: Mapping[str, Any]) -> None:
    """Raises ApiError 400 for a `cache_salt` that vLLM would refuse: it gets another, made of this one."""
    if (given := body.get("cache_salt")) is None:
        return
    try:
        _SALT.validate_python(given, strict=True)
    except ValidationError:
        message = "'cache_salt' must be a string of 1 to 128 characters, without '@', '/', '\\' and NUL"
        raise _refusal(message, "cache_salt") from None


def check_structure(body: Mapping[str, Any]) -> None:
    """Raises ApiError 400 where an answer with a structure may not end."""
    params = body.get("sampling_params")
    for fields in (body, params if isinstance(params, dict) else {}):
        if fields.get("ignore_eos") is not True:
            continue
        kinds = [_at(fields, (*place, "type")) for place in _TYPED]
        if fields.get("structured_outputs") is not None or any(kind not in (None, "text") for kind in kinds):
            raise _refusal("'ignore_eos' does not go with an answer that has a structure", "ignore_eos")
        choice = fields.get("tool_choice")
        if isinstance(choice, dict) or choice in _MUST_CALL:
            raise _refusal("'ignore_eos' does not go with a tool that must be called", "ignore_eos")


def _refusal(message: str, param: str) -> ApiError:
    return ApiError(400, message, "invalid_value", param)


def _at(value: Any, place: tuple[str, ...]) -> Any:
    for name in place:
        value = value.get(name) if isinstance(value, dict) else None
    return value
