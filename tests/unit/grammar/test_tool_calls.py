"""Calls that a grammar binds are read back as calls whose arguments follow the tool's schema, in every format."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import jsonschema
import pytest

from qserve.engines.transformers.worker.parsing.hermes import HermesCall
from qserve.engines.transformers.worker.parsing.message import MessageReader, MessageWriter, ReadingRules
from qserve.engines.transformers.worker.parsing.qwen3_coder import Qwen3CoderCall
from qserve.grammar.spec import GrammarSpec
from qserve.grammar.structured import structured_grammar
from qserve.grammar.tool_calls import answer_or_calls, tool_call_grammar
from qserve.hub.chat_template import ToolFormat
from qserve.wire.errors import ApiError
from qserve.wire.structured import StructuredOutputs
from qserve.wire.tools import NamedTool, Tool
from tests.unit.grammar.drawing import TOKENIZER, drawn, ready

SCHEMAS: dict[str, dict[str, Any]] = {
    "weather": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 6},
            "days": {"type": "integer", "minimum": 1, "maximum": 14},
            "unit": {"enum": ["C", "F"]},
            "at": {"$ref": "#/$defs/place"},
            "tags": {"type": "array", "items": {"type": "string", "maxLength": 3}, "maxItems": 2},
        },
        "required": ["city", "at"],
        "$defs": {"place": {"type": "object", "properties": {"lat": {"type": "number"}}, "required": ["lat"]}},
    },
    "now": {"type": "object", "properties": {}, "additionalProperties": False},
}
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


@pytest.mark.parametrize("parameters", [{}, {"parameters": None}, {"parameters": {"type": "object", "properties": {}}}])
@pytest.mark.parametrize("written", FORMATS)
def test_a_function_without_parameters_is_called_without_arguments(written: ToolFormat, parameters: Any) -> None:
    tool = Tool.model_validate({"type": "function", "function": {"name": "now", **parameters}})
    grammar = tool_call_grammar([tool], "required", written, is_parallel=False).grammar
    assert {str(calls_in(drawn(grammar, Random(seed)), written)) for seed in range(5)} == {"[('now', {})]"}


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


def one_tool(parameters: dict[str, Any]) -> Tool:
    return Tool.model_validate({"type": "function", "function": {"name": "f", "parameters": parameters}})


def written_xml(**values: str) -> str:
    """A call as a model of Qwen3-Coder's format writes it, its values as they are."""
    lines = "".join(f"<parameter={name}>\n{value}\n</parameter>\n" for name, value in values.items())
    return f"<tool_call>\n<function=f>\n{lines}</function>\n</tool_call>"


def may_write(parameters: dict[str, Any], text: str) -> bool:
    grammar = tool_call_grammar([one_tool(parameters)], "required", "qwen3_coder", is_parallel=False).grammar
    matcher, ids = ready(grammar).deep_copy(), TOKENIZER.encode(text, add_special_tokens=False).ids
    return bool(matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting())


COLOUR = {"type": "string", "enum": ["red", "green"]}
LATER = {"type": "array", "items": {"$ref": "#/properties/first"}}
TEXT_OR_NULL = ({"type": ["string", "null"]}, {"anyOf": [{"type": "string"}, {"type": "null"}]})


@pytest.mark.parametrize(
    ("schema", "written", "value"),
    [
        ({"type": "string"}, "", ""),
        ({"type": "string"}, "if a:\n  b</parameter>", "if a:\n  b</parameter>"),
        ({"type": "string", "maxLength": 20}, "Oslo", "Oslo"),
        ({"type": "string", "minLength": 3, "maxLength": 100_000}, "Oslo", "Oslo"),
        ({"type": "string", "pattern": "sl"}, "Oslo", "Oslo"),
        ({"type": "string", "pattern": "^[a-z]+$"}, "oslo", "oslo"),
        ({"type": "string", "format": "date"}, "2026-11-23", "2026-11-23"),
        *((schema, "Oslo", "Oslo") for schema in TEXT_OR_NULL),
        *((schema, "null", None) for schema in TEXT_OR_NULL),
        *((schema, "12", "12") for schema in TEXT_OR_NULL),
        ({"anyOf": [{"type": "string", "minLength": 2}, {"type": "null"}]}, "null", None),
        ({"$ref": "#/$defs/colour"}, "red", "red"),
        ({"const": "red"}, "red", "red"),
        ({"enum": ["red", None]}, "null", None),
        ({"enum": ["red", 5]}, '"red"', "red"),
        ({"enum": ["red", 5]}, "5", 5),
        ({"type": "integer"}, "5", 5),
        ({}, '"5"', "5"),
        (True, "5", 5),
    ],
)
def test_a_parameter_is_written_and_read_as_its_schema_means_it(schema: Any, written: str, value: Any) -> None:
    parameters = {"properties": {"a": schema}, "required": ["a"], "$defs": {"colour": COLOUR}}
    text = written_xml(a=written)
    assert may_write(parameters, text)
    reader, writer = (
        MessageReader(ReadingRules(new_block=lambda: Qwen3CoderCall({"f": parameters}))),
        MessageWriter(False),
    )
    for char in text:
        writer.delta(reader.push(char))
    assert [json.loads(call["function"]["arguments"]) for call in writer.calls] == [{"a": value}]
    jsonschema.validate({"a": value}, parameters)


@pytest.mark.parametrize(
    ("schema", "written"),
    [
        ({"type": "string", "minLength": 3}, "a"),
        ({"type": "string", "minLength": 1}, ""),
        ({"type": "string", "maxLength": 3}, "Oslo"),
        ({"type": "string", "format": "date"}, "2026-02-30"),
        ({"type": "string", "pattern": "^[a-z]+$", "maxLength": 2}, "abc"),
        ({"type": "string", "pattern": "x"}, "Oslo"),
        ({"$ref": "#/$defs/colour"}, '"red"'),
        ({"$ref": "#/$defs/colour"}, "blue"),
        ({"type": "integer"}, "Oslo"),
    ],
)
def test_a_parameter_is_not_written_against_its_schema(schema: Any, written: str) -> None:
    parameters = {"properties": {"a": schema}, "required": ["a"], "$defs": {"colour": COLOUR}}
    assert not may_write(parameters, written_xml(a=written))


def test_which_parameters_there_are_is_bound_too() -> None:
    named: dict[str, Any] = {"properties": {"a": {"type": "string"}}, "required": ["a", "z"]}
    assert may_write(named, written_xml(a="x", z="5")) and not may_write(named, written_xml(a="x"))
    numbers = {**named, "required": ["a"], "additionalProperties": {"type": "integer"}}
    assert may_write(numbers, written_xml(a="x", b="5", c="6"))
    assert not may_write(numbers, written_xml(a="x", b="y")) and not may_write(numbers, written_xml(a="x", a_="y"))
    assert not may_write({**named, "required": ["a"]}, written_xml(a="x", b="y"))


def test_a_reference_may_lead_anywhere_in_the_document() -> None:
    """As zod's schemas have it: what stands twice is written once, and referred to where it stands."""
    parameters = {"properties": {"first": {"type": "integer"}, "later": LATER}, "required": ["first", "later"]}
    assert may_write(parameters, written_xml(first="5", later="[5, 6]"))
    assert not may_write(parameters, written_xml(first="5", later='["x"]'))
    whole = {"$ref": "#/$defs/all", "$defs": {"all": {"properties": {"a": {"type": "string"}}, "required": ["a"]}}}
    assert may_write(whole, written_xml(a="x")) and not may_write(whole, written_xml())


@pytest.mark.parametrize("written", FORMATS)
def test_arguments_without_an_end_are_refused(written: ToolFormat) -> None:
    endless = one_tool({"properties": {"a": {"$ref": "#"}}, "required": ["a"]})
    with pytest.raises(ApiError, match="no end: the parameters of 'f'"):
        tool_call_grammar([endless], "auto", written, is_parallel=True)


def test_what_binds_parameters_together_is_refused_where_they_are_written_one_by_one() -> None:
    together = one_tool({"properties": {"a": {}, "b": {}}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]})
    with pytest.raises(ApiError, match="the parameters of 'f' ask for 'anyOf'"):
        tool_call_grammar([together], "auto", "qwen3_coder", is_parallel=True)


@pytest.mark.parametrize("written", FORMATS)
@pytest.mark.parametrize(
    "structure", [{"json": {"enum": ["x"]}}, {"regex": '"x"'}, {"choice": ['"x"']}, {"grammar": 'start: "\\"x\\""'}]
)
def test_an_answer_with_a_structure_may_be_calls_in_its_place(written: ToolFormat, structure: dict[str, Any]) -> None:
    """As agents ask that send their tools and the form of their last answer with every request."""
    answer = GrammarSpec(structured_grammar(StructuredOutputs.model_validate(structure)))
    either = answer_or_calls(answer, TOOLS, written, is_parallel=False)
    drawn_ones = {drawn(either.grammar, Random(seed)) for seed in range(20)}
    assert '"x"' in drawn_ones and either.begins == "answer"
    calls = [calls_in(text, written) for text in drawn_ones - {'"x"'}]
    assert calls and all(len(one) == 1 for one in calls)
    for ((name, arguments),) in calls:
        jsonschema.validate(arguments, SCHEMAS[name])
