"""What agents send and vLLM 0.32 refuses, changed into what it reads. The meaning stays; other bodies stay whole.

/v1/responses  bookkeeping (`client_metadata`, an `id` on a message that no answer was), the server's tools that an
               agent offers beside its own, thoughts that only another server can decrypt; a custom tool's grammar
               is told to the model, which vLLM can't hold to it
/v1/messages   fields that ask for nothing, marks on tools, tools that are deferred until a search has named them
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from qserve.wire.agent_fields import asks_for_nothing, loaded_tools, referenced_name
from qserve.wire.dialects.responses_tools import SERVER_TOOLS, server_tool_alone, with_grammar

__all__ = ["as_vllm_reads"]

_ROLES = ("user", "system", "developer")
# Fields that an item keeps of an earlier answer, and that vLLM's document does not name.
_NOT_READ: Mapping[str, frozenset[str]] = {
    "function_call_output": frozenset({"id"}),
    "custom_tool_call_output": frozenset({"id", "status"}),
    "custom_tool_call": frozenset({"status"}),
    "reasoning": frozenset({"encrypted_content"}),
}
_OF_MESSAGES = ("context_management", "mcp_servers", "container")
# Of Anthropic's tools: arguments are streamed as they are written, and only the model calls.
_MARKS: Mapping[str, tuple[Any, ...]] = {
    "eager_input_streaming": (True, False),
    "allowed_callers": (["direct"],),
    "defer_loading": (True, False),
}


def as_vllm_reads(path: str, body: dict[str, Any]) -> dict[str, Any]:
    """The body for the engine; the same object where nothing is to be done."""
    if path.startswith("/v1/responses"):
        changed = _responses(body)
    elif path.startswith("/v1/messages"):
        changed = _messages(body)
    else:
        return body
    return body if changed == body else changed


def _responses(body: dict[str, Any]) -> dict[str, Any]:
    changed = {name: value for name, value in body.items() if name != "client_metadata" or not isinstance(value, dict)}
    if isinstance(given := body.get("input"), list):
        changed["input"] = [_item(item) for item in given if not _is_unreadable(item)]
    if isinstance(tools := body.get("tools"), list) and all(isinstance(tool, dict) for tool in tools):
        kinds = [tool.get("type") for tool in tools]
        kept = tools if server_tool_alone(kinds) else [tool for tool in tools if tool.get("type") not in SERVER_TOOLS]
        changed["tools"] = [_custom(tool) for tool in kept]
    return changed


def _item(item: Any) -> Any:
    if not isinstance(item, dict):
        return item
    is_message = item.get("type", "message") == "message" and item.get("role") in _ROLES
    unread = frozenset({"id"}) if is_message else _NOT_READ.get(str(item.get("type")), frozenset())
    kept = {name: value for name, value in item.items() if name not in unread}
    return {"summary": [], **kept} if item.get("type") == "reasoning" else kept


def _is_unreadable(item: Any) -> bool:
    """A thought of which there is nothing but what is encrypted."""
    is_thought = isinstance(item, dict) and item.get("type") == "reasoning" and item.get("encrypted_content")
    return bool(is_thought) and not item.get("content") and not item.get("summary")


def _custom(tool: dict[str, Any]) -> dict[str, Any]:
    given = tool.get("format")
    if tool.get("type") != "custom" or not isinstance(given, dict) or given.get("type") != "grammar":
        return tool
    described = tool.get("description")
    told = with_grammar(described if isinstance(described, str) else None, given)
    return {**tool, "description": told, "format": {"type": "text"}}


def _messages(body: dict[str, Any]) -> dict[str, Any]:
    unasked = {name for name in _OF_MESSAGES if asks_for_nothing(name, body.get(name))}
    changed = {name: value for name, value in body.items() if name not in unasked}
    messages = body.get("messages")
    if isinstance(messages, list):
        changed["messages"] = [_with_names(message) for message in messages]
    if isinstance(tools := body.get("tools"), list) and isinstance(messages, list):
        changed["tools"] = [_unmarked(tool) for tool in loaded_tools(tools, messages)]
    return changed


def _unmarked(tool: Any) -> Any:
    if not isinstance(tool, dict):
        return tool
    return {name: value for name, value in tool.items() if value not in _MARKS.get(name, ())}


def _with_names(message: Any) -> Any:
    """With the tools that a search has found as text, which a chat template can write."""
    content = message.get("content") if isinstance(message, dict) else None
    if not isinstance(content, list) or not any(_has_references(block) for block in content):
        return message
    return {**message, "content": [_named(block) if _has_references(block) else block for block in content]}


def _has_references(block: Any) -> bool:
    inner = block.get("content") if isinstance(block, dict) and block.get("type") == "tool_result" else None
    return isinstance(inner, list) and any(referenced_name(one) for one in inner)


def _named(block: Mapping[str, Any]) -> dict[str, Any]:
    inner: Sequence[Any] = block["content"]
    texts = [{"type": "text", "text": name} if (name := referenced_name(one)) else one for one in inner]
    return {**block, "content": texts}
