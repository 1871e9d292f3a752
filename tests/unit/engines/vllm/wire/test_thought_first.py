"""A structure with a thought before it, as vLLM's grammar library reads it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from qserve.engines.vllm.wire.thought_first import with_thought_first

SCHEMA = {"type": "object", "properties": {"answer": {"type": "integer"}}, "required": ["answer"]}
FORMAT = {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}}


def parts_of(body: dict[str, Any] | None) -> list[dict[str, Any]]:
    assert body is not None and "response_format" not in body
    tag = json.loads(body["structured_outputs"]["structural_tag"])
    assert (tag["type"], tag["format"]["type"]) == ("structural_tag", "sequence")
    return tag["format"]["elements"]


@pytest.mark.parametrize(
    ("asked", "kind", "value"),
    [
        (FORMAT, "json_schema", SCHEMA),
        ({"response_format": {"type": "json_object"}}, "json_schema", {"type": "object"}),
        ({"structured_outputs": {"json": SCHEMA, "regex": None}}, "json_schema", SCHEMA),
        ({"structured_outputs": {"json_object": True}}, "json_schema", {"type": "object"}),
        ({"structured_outputs": {"regex": "[0-9]+"}}, "pattern", "[0-9]+"),
        ({"structured_outputs": {"choice": ["yes"]}}, "elements", [{"type": "const_string", "value": "yes"}]),
    ],
)
def test_the_thought_may_come_first_and_the_structure_must_follow(asked: Any, kind: str, value: Any) -> None:
    thought, structure = parts_of(with_thought_first({"model": "m", "temperature": 0, **asked}))
    assert thought["type"] == "optional"
    tag = thought["content"]["elements"][0]
    assert (tag["begin"], tag["end"]) == ("<think>", "</think>")
    assert structure[kind] == value


@pytest.mark.parametrize(
    "fields",
    [
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"reasoning_effort": "none"},
        {"tools": [{}]},
        {"continue_final_message": True},
        {"response_format": None},
        {"response_format": {"type": "text"}},
        {"structured_outputs": {"regex": "a"}},
        {"response_format": None, "structured_outputs": {"grammar": "root ::= "}},
    ],
)
def test_where_no_thought_comes_first_the_body_stays(fields: dict[str, Any]) -> None:
    assert with_thought_first({"model": "m", **FORMAT, **fields}) is None
