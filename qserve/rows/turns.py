"""Turns of any format as chat templates take them: `role` and `content`, and what an assistant thinks and calls.

OpenAI, TRL     {"role", "content": text, parts or null, "tool_calls", "reasoning_content", "name", "tool_call_id"}
ShareGPT        {"from", "value"}, of LLaMA-Factory with "function_call" and "observation"
ms-swift        {"role": "tool_call"} and "tool_response"; {"human", "assistant"} of one round
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from qserve.rows.fields import Fields, RowError
from qserve.rows.marks import MARKS, PARTIAL, is_masked
from qserve.rows.tools import calls_of

__all__ = ["Message", "Turn", "is_turn", "messages_of", "turns_of"]

Message = dict[str, Any]

_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "bot": "assistant",
    "model": "assistant",
    "ai": "assistant",
    "tool": "tool",
    "observation": "tool",
    "tool_response": "tool",
    "function": "tool",
    "function_call": "assistant",
    "tool_call": "assistant",
}
_CALLING = ("function_call", "tool_call")
_THOUGHTS = ("reasoning_content", "reasoning", "thinking")
_KEPT = ("name", "tool_call_id")
_KNOWN = ("role", "from", "content", "value", "tool_calls", "function_call", *_THOUGHTS, *_KEPT, *MARKS, *PARTIAL)
_ROUND = ("human", "assistant")


class Turn(NamedTuple):
    """`message` is as the template takes it; `is_masked`: it is not trained on."""

    message: Message
    is_masked: bool = False

    @property
    def role(self) -> str:
        return str(self.message["role"])


def messages_of(turns: Sequence[Turn]) -> list[Message]:
    """Without their marks."""
    return [turn.message for turn in turns]


def is_turn(value: Any) -> bool:
    """Whether it is meant as a turn."""
    return isinstance(value, Mapping) and (isinstance(value.get("role", value.get("from")), str) or _is_round(value))


def _is_round(value: Mapping[str, Any]) -> bool:
    return "human" in value and set(value) <= set(_ROUND)


def turns_of(value: Any, fields: Fields) -> list[Turn] | None:
    """None where `value` is no list of turns. Raises RowError for a turn that no template can be given."""
    if not isinstance(value, list | tuple) or not value or not all(map(is_turn, value)):
        return None
    turns: list[Turn] = []
    for one in value:
        if _is_round(one):
            asked = ({"role": "user", "content": one["human"]}, {"role": "assistant", "content": one.get("assistant")})
            turns += [_turn(turn, fields)[0] for turn in asked if turn["content"] is not None]
            continue
        turn, is_call = _turn(one, fields)
        if is_call and turns and turns[-1].role == "assistant":
            turns[-1] = _joined(turns[-1], turn)
        else:
            turns.append(turn)
    return turns


def _turn(value: Mapping[str, Any], fields: Fields) -> tuple[Turn, bool]:
    """The turn, and whether it is nothing but calls, which belong to what the assistant said before."""
    said = str(value.get("role", value.get("from")))
    if said not in _ROLES:
        raise RowError(f"the role {said!r} is not one of {', '.join(_ROLES)}")
    role = _ROLES[said]
    fields.of_turn(value, _KNOWN)
    message: Message = {"role": role}
    content = value.get("content", value.get("value"))
    if said in _CALLING:
        message |= {"content": "", "tool_calls": calls_of(content, fields)}
    else:
        message |= _said(value, role, content, fields)
    message |= {name: value[name] for name in _KEPT if isinstance(value.get(name), str) and value[name]}
    return Turn(message, is_masked(value, role)), said in _CALLING


def _said(value: Mapping[str, Any], role: str, content: Any, fields: Fields) -> Message:
    calls = value.get("tool_calls") or value.get("function_call")
    if calls and role != "assistant":
        raise RowError(f"a turn of role {role!r} calls tools; only the assistant's turns may")
    made: Message = {"content": _text(content, role, bool(calls), fields)}
    thought = next((value[name] for name in _THOUGHTS if value.get(name)), None)
    if thought is not None:
        if not isinstance(thought, str):
            raise RowError(f"the thought of a turn must be a text; found {type(thought).__name__}")
        made["reasoning_content"] = thought
    return made | ({"tool_calls": calls_of(calls, fields)} if calls else {})


def _text(content: Any, role: str, has_calls: bool, fields: Fields) -> str:
    """Null is as an empty text to a template, where the turn calls tools."""
    if content is None and has_calls:
        return ""
    if isinstance(content, list | tuple) and content and all(isinstance(part, Mapping) for part in content):
        return "".join(_part(part, fields) for part in content)
    if isinstance(content, str):
        return content
    raise RowError(f"the content of a turn of role {role!r} must be a text or a list of parts; found {_kind(content)}")


def _kind(value: Any) -> str:
    return "null" if value is None else type(value).__name__


def _part(part: Mapping[str, Any], fields: Fields) -> str:
    """LLaMA-Factory's newer format has its text as "value"."""
    text = part.get("text", part.get("value"))
    if part.get("type", "text") != "text" or not isinstance(text, str):
        raise RowError(
            f"a part of type {part.get('type')!r} is not read; parts of a turn are {{'type': 'text', 'text'}}"
        )
    fields.of_turn(part, ("type", "text", "value"), "a part's")
    return text


def _joined(before: Turn, calls: Turn) -> Turn:
    """What the assistant said, and the calls that end it."""
    if before.is_masked != calls.is_masked:
        raise RowError("an answer and its calls are marked differently: one is trained on and the other is not")
    made = [*before.message.get("tool_calls", ()), *calls.message["tool_calls"]]
    return Turn({**before.message, "tool_calls": made}, before.is_masked)
