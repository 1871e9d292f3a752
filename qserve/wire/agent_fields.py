"""What agents send with every request, by Anthropic's names: fields that ask for nothing, tools that are shown later.

Read from what Claude Code 2.1 sends to an address that is not Anthropic's. Both engines follow these rules.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

__all__ = ["BILLING", "asks_for_nothing", "loaded_tools", "referenced_name"]

BILLING = "x-anthropic-billing-header"
"""A block of the system's text that begins so is bookkeeping, and differs between releases."""
# To keep all thoughts is to clear none.
_CLEARS_NOTHING = ({"type": "clear_thinking_20251015", "keep": "all"},)


def asks_for_nothing(name: str, value: Any) -> bool:
    """Whether a field that is not served may be left out: it is an empty list, or says what is done anyway."""
    if name == "context_management" and isinstance(value, Mapping):
        edits = value.get("edits")
        return not value.keys() - {"edits"} and isinstance(edits, list) and all(one in _CLEARS_NOTHING for one in edits)
    return isinstance(value, list) and not value


def loaded_tools(tools: Sequence[Any], messages: Sequence[Any]) -> list[Any]:
    """The tools that the model is shown: of the deferred ones those that the conversation has loaded."""
    named = set(_loaded_names(messages))
    return [tool for tool in tools if not _of(tool, "defer_loading") or str(_of(tool, "name")) in named]


def referenced_name(block: Any) -> str | None:
    """The tool that a `tool_reference` names, by which a client's search loads it; None for any other block."""
    name = _of(block, "tool_name") if _of(block, "type") == "tool_reference" else None
    return name if isinstance(name, str) else None


def _loaded_names(messages: Sequence[Any]) -> Iterator[str]:
    for block in (block for message in messages for block in _list(_of(message, "content"))):
        if _of(block, "type") == "tool_result":
            yield from filter(None, map(referenced_name, _list(_of(block, "content"))))
        elif _of(block, "type") == "tool_addition":
            yield str(_of(_of(block, "tool"), "name"))


def _of(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()
