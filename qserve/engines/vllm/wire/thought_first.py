"""A structure with a thought before it, for vLLM and models that think where they like.

vLLM binds an answer from its first token or from `</think>` on, and who does not think is not bound at all then. So the
thought becomes a part of the structure, in xgrammar's own words (`structural_tag`), which the engine binds at once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

__all__ = ["with_thought_first"]

_THOUGHT: dict[str, Any] = {
    "type": "sequence",
    "elements": [
        {"type": "tag", "begin": "<think>", "content": {"type": "any_text"}, "end": "</think>"},
        {"type": "regex", "pattern": r"\n{0,2}"},
    ],
}
# The least that the library takes; the server that qserve starts allows none (`launch/plugins/schema_grammars.py`).
_MOST_BLANKS = 1


def with_thought_first(body: Mapping[str, Any]) -> dict[str, Any] | None:
    """A chat whose answer may begin with a thought; None where it may not, or no structure is asked for."""
    structure = _structure_of(body)
    if structure is None or body.get("tools") or not _may_think(body):
        return None
    elements = [{"type": "optional", "content": _THOUGHT}, structure]
    tag = {"type": "structural_tag", "format": {"type": "sequence", "elements": elements}}
    others = {name: value for name, value in body.items() if name != "response_format"}
    return {**others, "structured_outputs": {"structural_tag": json.dumps(tag)}}


def _may_think(body: Mapping[str, Any]) -> bool:
    """Not where the prompt closes the thought, or is the beginning of an answer."""
    switches = body.get("chat_template_kwargs")
    is_off = isinstance(switches, Mapping) and switches.get("enable_thinking") is False
    return not (is_off or body.get("reasoning_effort") == "none" or body.get("continue_final_message"))


def _structure_of(body: Mapping[str, Any]) -> dict[str, Any] | None:
    """As a part of a structural tag; None for what is none, or more than one, or has no such part."""
    asked, given = body.get("response_format"), body.get("structured_outputs")
    if isinstance(asked, Mapping) and not given:
        schema = asked.get("json_schema")
        is_object = asked.get("type") == "json_object"
        return _schema({"type": "object"} if is_object else schema.get("schema") if isinstance(schema, dict) else None)
    said = {name: value for name, value in given.items() if value} if isinstance(given, Mapping) else {}
    if asked or len(said) != 1:
        return None
    ((kind, value),) = said.items()
    if kind in ("json", "json_object"):
        return _schema({"type": "object"} if kind == "json_object" else value)
    if kind == "regex" and isinstance(value, str):
        return {"type": "regex", "pattern": value}
    if kind == "choice" and isinstance(value, list) and all(isinstance(one, str) for one in value):
        return {"type": "or", "elements": [{"type": "const_string", "value": one} for one in value]}
    return None


def _schema(schema: Any) -> dict[str, Any] | None:
    if not isinstance(schema, dict):
        return None
    return {"type": "json_schema", "json_schema": schema, "max_whitespace_cnt": _MOST_BLANKS}
