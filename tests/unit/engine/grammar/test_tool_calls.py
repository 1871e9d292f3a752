"""Calls that a grammar binds are read back as calls whose arguments follow the tool's schema, in every format."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import jsonschema
import pytest

from qserve.engine.grammar.tool_calls import tool_call_grammar
from qserve.engine.transformers.parsing.hermes import HermesCall
from qserve.engine.transformers.parsing.message import MessageReader, MessageWriter, ReadingRules
from qserve.engine.transformers.parsing.qwen3_coder import Qwen3CoderCall
from qserve.hub.chat_template import ToolFormat
from qserve.wire.tools import NamedTool, Tool
from tests.unit.engine.grammar.drawing import drawn

SCHEMAS: dict[str, dict[str, Any]] = {
    "weather": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 6}, "days": {"type": "integer", "minimum": 1, "maximum": 14},
            "unit": {"enum": ["C", "F"]}, "at": {"$ref": "#/$defs/place"},
            "tags": {"type": "array", "items": {"type": "string", "maxLength": 3}, "maxItems": 2},
        },
        "required": ["city", "at"],
        "$defs": {"place": {"type": "object", "properties": {"lat": {"type": "number"}}, "required": ["lat"]}},
    },
    "now": {"type": "object", "properties": {}, "additionalProperties": False},
}  # fmt: skip
TOOLS = [
    Tool.model_validate({"type": "function", "function": {"name": name, "parameters": schema}})
    for name, schema in SCHEMAS.items()
]
FORMATS: tuple[ToolFormat, ...] = ("hermes", "qwen3_coder")


def calls_in(text: str, written: ToolFormat) -> list[tuple[str, Any]]:
    new_block = HermesCall if written == "hermes" else lambda: Qwen3CoderCall(SCHEMAS)
    reader, writer = MessageReader(ReadingRules(new_block=new_block)), MessageWriter(thinks=False)
    writer.delta([*reader.push(text), *reader.flush()])
    assert not writer.content, text
    return [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in writer.calls]


@pytest.mark.parametrize("written", FORMATS)
def test_required_calls_follow_their_schemas(written: ToolFormat) -> None:
    rng, seen = Random(1), set()
    grammar = tool_call_grammar(TOOLS, "required", written, is_parallel=True).grammar
    for _ in range(30):
        calls = calls_in(drawn(grammar, rng), written)
        assert calls
        for name, arguments in calls:
            jsonschema.validate(arguments, SCHEMAS[name])
            seen.add(name)
    assert seen == set(SCHEMAS)


@pytest.mark.parametrize("written", FORMATS)
def test_a_named_tool_is_called_once(written: ToolFormat) -> None:
    choice = NamedTool.model_validate({"type": "function", "function": {"name": "weather"}})
    grammar = tool_call_grammar(TOOLS, choice, written, is_parallel=True).grammar
    for seed in range(5):
        (call,) = calls_in(drawn(grammar, Random(seed)), written)
        assert call[0] == "weather"


@pytest.mark.parametrize("written", FORMATS)
def test_one_call_at_most_where_they_are_not_parallel(written: ToolFormat) -> None:
    grammar = tool_call_grammar(TOOLS, "required", written, is_parallel=False).grammar
    assert all(len(calls_in(drawn(grammar, Random(seed)), written)) == 1 for seed in range(10))


@pytest.mark.parametrize("written", FORMATS)
def test_where_calls_are_free_the_grammar_begins_after_the_tag(written: ToolFormat) -> None:
    spec = tool_call_grammar(TOOLS[:1], "auto", written, is_parallel=False)
    assert (spec.begins, spec.only_one) == ("tool_call", True)
    text = drawn(spec.grammar, Random(1))
    assert text.startswith("\n") and text.endswith("</tool_call>")
    assert calls_in("<tool_call>" + text, written)[0][0] == "weather"


def test_a_tool_without_parameters_takes_any_object() -> None:
    tool = Tool.model_validate({"type": "function", "function": {"name": "f"}})
    text = drawn(tool_call_grammar([tool], "required", "hermes", is_parallel=False).grammar, Random(1))
    assert isinstance(calls_in(text, "hermes")[0][1], dict)
