"""What agents send with every request, by Anthropic's names: what of it asks for nothing, which tools wait.

Read from what Claude Code 2.1 sends to an address that is not Anthropic's. Both engines go by these rules.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

__all__ = ["BILLING", "asks_for_nothing", "loaded_tools", "referenced"]

BILLING = "x-anthropic-billing-header"
"""With this begins a block of the system's text that is bookkeeping, and another one with every release."""
# Whoever keeps all thoughts clears none.
_CLEARS_NOTHING = ({"type": "clear_thinking_20251015", "keep": "all"},)


def asks_for_nothing(name: str, value: Any) -> bool:
    """Whether a field that is not served says nothing: an empty list, or what is done anyway."""
    if name == "context_management" and isinstance(value, Mapping):
        edits = value.get("edits")
        return not value.keys() - {"edits"} and isinstance(edits, list) and all(one in _CLEARS_NOTHING for one in edits)
    return isinstance(value, list) and not value


def loaded_tools(tools: Sequence[Any], messages: Sequence[Any]) -> list[Any]:
    """Those that the model is shown: one that is deferred, once a result of the client's search has named it."""
    named = set(referenced(messages))
    return [tool for tool in tools if not _of(tool, "defer_loading") or str(_of(tool, "name")) in named]


def referenced(messages: Sequence[Any]) -> Iterator[str]:
    """The names of tools that the conversation has loaded."""
    for block in (block for message in messages for block in _list(_of(message, "content"))):
        if _of(block, "type") == "tool_result":
            yield from (str(_of(one, "tool_name")) for one in _list(_of(block, "content")) if _is_reference(one))
        elif _of(block, "type") == "tool_addition":
            yield str(_of(_of(block, "tool"), "name"))


def _is_reference(value: Any) -> bool:
    return bool(_of(value, "type") == "tool_reference")


def _of(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()
