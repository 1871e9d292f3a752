"""Calls of tools and the tools themselves, as chat templates take them: calls with their arguments as objects."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from qserve.rows.fields import Fields, RowError

__all__ = ["called_text", "calls_of", "template_fields_of"]

_VARIABLES = "chat_template_kwargs"
_CALL = ("id", "type", "function", "name", "arguments", "parameters")
_MEDIA = ("images", "image", "videos", "video", "audios", "audio")
# Arguments of apply_chat_template itself, which no row may set.
_NOT_A_VARIABLE = frozenset(
    (
        "conversation",
        "messages",
        "tools",
        "documents",
        "chat_template",
        "add_generation_prompt",
        "padding",
        "continue_final_message",
        "tokenize",
        "truncation",
        "max_length",
        "return_tensors",
        "return_dict",
        "return_assistant_tokens_mask",
        "tokenizer_kwargs",
    )
)


def template_fields_of(fields: Fields) -> dict[str, Any]:
    """What the chat template is given with the turns, where there is any: `tools`, `chat_template_kwargs`.

    Raises RowError for what it can't be given, and for fields of images and sounds.
    """
    if (name := next((name for name in _MEDIA if fields.peek(name)), None)) is not None:
        raise RowError("has a value, but only text is read", name)
    made: dict[str, Any] = {}
    if tools := _tools(fields.take("tools", "functions")):
        made["tools"] = tools
    if variables := _variables(fields.take(_VARIABLES)):
        made[_VARIABLES] = variables
    return made


def _tools(value: Any) -> list[dict[str, Any]]:
    given = _parsed(value, "tools") if isinstance(value, str) and value.strip() else value
    if isinstance(given, Mapping):
        given = [given]
    if given is None or given == "" or given == []:
        return []
    if not isinstance(given, list | tuple):
        raise RowError(f"must be a list of functions; found {type(given).__name__}", "tools")
    return [_tool(one) for one in given]


def _tool(value: Any) -> dict[str, Any]:
    """In OpenAI's form, in which a model sees it where it is served."""
    value = _parsed(value, "tools") if isinstance(value, str) else value
    if isinstance(value, Mapping) and isinstance(value.get("function"), Mapping):
        return {"type": "function", **value}
    if isinstance(value, Mapping) and isinstance(value.get("name"), str):
        function = {name: one for name, one in value.items() if name != "type"}
        return {"type": "function", "function": function}
    raise RowError(f"has an entry that is not a function with a name: {_short(value)}", "tools")


def _variables(value: Any) -> dict[str, Any]:
    given = _parsed(value, _VARIABLES) if isinstance(value, str) and value.strip() else value
    if given is None or given == "":
        return {}
    if not isinstance(given, Mapping):
        raise RowError(f"must be an object; found {type(given).__name__}", _VARIABLES)
    if (name := next((name for name in given if name in _NOT_A_VARIABLE), None)) is not None:
        raise RowError(f"has {name!r}, which is not a variable of a template", _VARIABLES)
    return {name: one for name, one in given.items() if one is not None}


def calls_of(value: Any, fields: Fields) -> list[dict[str, Any]]:
    """Of `tool_calls`, of one `function_call`, or of either as JSON text. Raises RowError for what is no call."""
    given = _parsed(value, "tool_calls") if isinstance(value, str) else value
    given = [given] if isinstance(given, Mapping) else given
    if not isinstance(given, list | tuple) or not all(isinstance(one, Mapping) for one in given):
        raise RowError(f"a turn's calls must be a list of objects with name and arguments; found {_short(value)}")
    return [_call(one, fields) for one in given]


def _call(value: Mapping[str, Any], fields: Fields) -> dict[str, Any]:
    fields.of_turn(value, _CALL, "a call's")
    called = value["function"] if isinstance(value.get("function"), Mapping) else value
    if called is not value:
        fields.of_turn(called, ("name", "arguments", "parameters"), "a call's")
    if not isinstance(called.get("name"), str) or not called["name"]:
        raise RowError(f"a call has no name: {_short(value)}")
    arguments = called.get("arguments", called.get("parameters"))
    own = {"id": value["id"]} if isinstance(value.get("id"), str) else {}
    return {"type": "function", **own, "function": {"name": called["name"], "arguments": _arguments(arguments)}}


def _arguments(value: Any) -> dict[str, Any]:
    """As an object: some templates walk over it, and others write it as JSON."""
    given = _parsed(value, "arguments") if isinstance(value, str) and value.strip() else value
    if given is None or given == "":
        return {}
    if not isinstance(given, Mapping):
        raise RowError(f"the arguments of a call must be an object, or one as JSON text; found {_short(value)}")
    return dict(given)


def called_text(message: Mapping[str, Any]) -> str:
    """What a message says, with its calls as Qwen writes them: for whoever reads an answer as text."""
    said = [str(message["content"])] if message.get("content") else []
    for call in message.get("tool_calls") or ():
        written = json.dumps(dict(call["function"]), ensure_ascii=False)
        said.append(f"<tool_call>\n{written}\n</tool_call>")
    return "\n".join(said)


def _parsed(value: str, name: str) -> Any:
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        raise RowError(f"is a text that is not JSON: {_short(value)}", name) from None


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}…"
