"""Forms of requests that vLLM 0.32 refuses or ignores, rewritten as forms that it follows.

The own engine takes them by its schemas (`tools`, `structured`, `dialects`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from qserve.wire.dialects.responses_tools import chosen_name, flat_name
from qserve.wire.errors import ApiError
from qserve.wire.system_turns import one_system

__all__ = ["in_engine_words"]

_CHAT, _RESPONSES, _MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"


def in_engine_words(path: str, body: dict[str, Any], *, takes_one_system: bool = False) -> dict[str, Any]:
    """The body as vLLM follows it; the same object where nothing changes. Raises ApiError 400 for what it can't follow.

    `takes_one_system`: the chat template takes one system turn at the beginning, and several are joined.
    """
    path = path.removesuffix("/render")
    changed = body
    if path in (_CHAT, "/v1/completions"):
        changed = _with_format(changed)
    if path in (_CHAT, _RESPONSES):
        changed = _with_choice(changed, is_chat=path == _CHAT)
        if takes_one_system:
            changed = _with_one_system(changed, is_chat=path == _CHAT)
    if path.startswith(_MESSAGES) and changed.get("output_format") is not None:
        changed = _with_output_config(changed)
    return changed


def _with_format(body: dict[str, Any]) -> dict[str, Any]:
    """Hugging Face's `{"type": "json", "value": schema}` and its like."""
    given = body.get("response_format")
    value = given.get("value") if isinstance(given, dict) else None
    if not isinstance(given, dict) or value is None:
        return body
    kind = given.get("type")
    if given.keys() != {"type", "value"} or kind not in ("json", "json_object", "regex"):
        message = "'response_format.value' goes with the types json, json_object and regex, and with no other field"
        raise ApiError(400, message, "invalid_value", "response_format")
    if body.get("structured_outputs") is not None:
        message = "'response_format' and 'structured_outputs' both say what the answer is; give one"
        raise ApiError(400, message, "invalid_value", "response_format")
    others = {name: one for name, one in body.items() if name != "response_format"}
    return {**others, "structured_outputs": {"regex" if kind == "regex" else "json": value}}


def _with_choice(body: dict[str, Any], *, is_chat: bool) -> dict[str, Any]:
    """`tool_choice` without a type, as Hugging Face's clients have it, or with `allowed_tools`."""
    choice = body.get("tool_choice")
    if not isinstance(choice, dict):
        return body
    kind = choice.get("type", "function" if is_chat and "function" in choice else None)
    if kind == "function" or (kind == "custom" and not is_chat):
        return {**body, "tool_choice": {"type": kind, **choice}} if "type" not in choice else body
    if kind != "allowed_tools":
        seen = f"of type '{str(kind)[:40]}'" if kind is not None else "without a type"
        message = f"'tool_choice' is an object {seen}; function and allowed_tools are known"
        raise ApiError(400, message, "invalid_value", "tool_choice")
    return _with_allowed(body, choice, is_chat=is_chat)


def _with_allowed(body: dict[str, Any], choice: Mapping[str, Any], *, is_chat: bool) -> dict[str, Any]:
    """`tools` are the allowed ones alone; the template is shown all of them, by `chat_template_kwargs`."""
    said = choice.get("allowed_tools") if is_chat else choice
    mode, allowed = (said.get("mode"), said.get("tools")) if isinstance(said, dict) else (None, None)
    place = "tool_choice.allowed_tools" if is_chat else "tool_choice"
    if mode not in ("auto", "required") or not isinstance(allowed, list) or not allowed:
        message = f"'{place}' needs a 'mode', auto or required, and 'tools', the functions that may be called"
        raise ApiError(400, message, "invalid_value", "tool_choice")
    entries = [one for one in _list(body.get("tools")) if isinstance(one, dict)]
    tools = [tool for entry in entries for tool in _tools_of(entry, is_chat)]
    own_names = {flat: _own_name(tool, is_chat) for flat, tool in tools}
    names = [chosen_name(_namespace(one, is_chat), _own_name(one, is_chat), own_names) for one in allowed]
    if unknown := [name for name in names if name not in own_names]:
        message = f"'{place}' names {unknown[0][:80]!r}; 'tools' has {', '.join(own_names)[:200] or 'none'}"
        raise ApiError(400, message, "invalid_value", "tool_choice")
    kwargs = body.get("chat_template_kwargs")
    shown = entries if is_chat else [_as_in_chat(flat, tool) for flat, tool in tools]
    kept = [only for entry in entries if (only := _only(entry, names, is_chat)) is not None]
    return {
        **body,
        "tools": kept,
        "tool_choice": mode,
        "chat_template_kwargs": {**(kwargs if isinstance(kwargs, dict) else {}), "tools": shown},
    }


def _tools_of(entry: Mapping[str, Any], is_chat: bool) -> list[tuple[str, Mapping[str, Any]]]:
    """What an entry of `tools` holds, itself or the tools of a namespace, each with its name to the model."""
    if is_chat or entry.get("type") != "namespace":
        return [(_own_name(entry, is_chat), entry)]
    inner = [one for one in _list(entry.get("tools")) if isinstance(one, dict)]
    return [(flat_name(str(entry.get("name")), _own_name(one, is_chat)), one) for one in inner]


def _only(entry: dict[str, Any], names: Sequence[str], is_chat: bool) -> dict[str, Any] | None:
    """An entry of `tools` with those of `names`; None where it holds none of them."""
    kept = [tool for flat, tool in _tools_of(entry, is_chat) if flat in names]
    if not kept:
        return None
    return entry if kept[0] is entry else {**entry, "tools": kept}


def _own_name(tool: Any, is_chat: bool) -> str:
    """As the client calls a tool; empty where that is no name."""
    function = tool.get("function") if is_chat and isinstance(tool, dict) else tool
    name = function.get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) else ""


def _namespace(tool: Any, is_chat: bool) -> str | None:
    namespace = None if is_chat or not isinstance(tool, dict) else tool.get("namespace")
    return namespace if isinstance(namespace, str) else None


def _as_in_chat(name: str, tool: Mapping[str, Any]) -> dict[str, Any]:
    described = {key: tool[key] for key in ("description", "parameters") if tool.get(key) is not None}
    return {"type": "function", "function": {"name": name, **described}}


def _with_one_system(body: dict[str, Any], *, is_chat: bool) -> dict[str, Any]:
    name = "messages" if is_chat else "input"
    instructions = None if is_chat else body.get("instructions")
    found = one_system(_list(body.get(name)), instructions if isinstance(instructions, str) else "")
    if found is None or not found[1]:
        return body
    system, others = found
    if is_chat:
        return {**body, "messages": [{"role": "system", "content": system}, *others]}
    return {**body, "instructions": system, "input": others}


def _with_output_config(body: dict[str, Any]) -> dict[str, Any]:
    """Anthropic's older `output_format`, by its name of today."""
    config = body.get("output_config")
    config = dict(config) if isinstance(config, dict) else {}
    given = body["output_format"]
    if config.get("format", given) != given:
        message = "'output_format' is the older name of 'output_config.format', and they differ; give one of them"
        raise ApiError(400, message, "invalid_value", "output_format")
    others = {name: value for name, value in body.items() if name != "output_format"}
    return {**others, "output_config": {**config, "format": given}}


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else []
