"""An object takes no properties but those that a schema of it names, whichever schemas describe it."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from qserve.grammar.structured import structured_grammar
from qserve.wire.structured import StructuredOutputs
from tests.unit.grammar.drawing import TOKENIZER, ready

INT = {"type": "integer"}
A, B = ({"type": "object", "properties": {name: INT}, "required": [name]} for name in "ab")
DEFS = {"$defs": {"A": A, "B": B, "Open": {**A, "additionalProperties": True}}}
REF_A, REF_B = {"$ref": "#/$defs/A"}, {"$ref": "#/$defs/B"}
TREE = {"$defs": {"T": {"type": "object", "properties": {"t": {"allOf": [{"$ref": "#/$defs/T"}]}, "a": INT}}}}


def accepts(schema: dict[str, Any], value: Any) -> bool:
    matcher = ready(structured_grammar(StructuredOutputs.model_validate({"json": schema}))).deep_copy()
    ids = TOKENIZER.encode(json.dumps(value), add_special_tokens=False).ids
    return bool(matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting())


@pytest.mark.parametrize(
    ("schema", "taken"),
    [
        ({"allOf": [A]}, [{"a": 1}]),
        ({**DEFS, "allOf": [REF_A], "title": "pydantic 1"}, [{"a": 1}]),
        ({**DEFS, "type": "object", "properties": {"x": {"allOf": [REF_A], "description": "d"}}}, [{"x": {"a": 1}}]),
        ({"allOf": [A, B]}, [{"a": 1, "b": 2}]),
        ({**DEFS, "allOf": [REF_A, REF_B, {"required": ["a"]}]}, [{"a": 1, "b": 2}]),
        ({**A, "allOf": [B]}, [{"a": 1, "b": 2}]),
        ({**DEFS, **REF_A, "properties": {"b": INT}}, [{"a": 1}, {"a": 1, "b": 2}]),
        ({**A, "anyOf": [B, {"properties": {"c": INT}, "required": ["c"]}]}, [{"a": 1, "b": 1}, {"a": 1, "c": 1}]),
        ({**DEFS, **A, "anyOf": [REF_B, {"type": "object"}]}, [{"a": 1, "b": 1}, {"a": 1}]),
        ({"anyOf": [A, {"allOf": [B]}]}, [{"a": 1}, {"b": 1}]),
        ({**TREE, "$ref": "#/$defs/T"}, [{"t": {"t": {"a": 1}, "a": 1}}, {}]),
        ({"allOf": [{"allOf": [A]}, {"anyOf": [B]}]}, [{"a": 1, "b": 2}]),
    ],
    ids=lambda one: json.dumps(one)[:60],
)
def test_several_schemas_of_one_object_close_it_together(schema: dict[str, Any], taken: list[dict[str, Any]]) -> None:
    for value in taken:
        assert jsonschema.Draft202012Validator(schema).is_valid(value) and accepts(schema, value)
        inner = value.get("x", value)
        for more in ({**inner, "z": 1}, {**inner, "Z": "x"}):
            assert not accepts(schema, {"x": more} if "x" in value else more)


@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": [{**A, "additionalProperties": True}]},
        {**DEFS, "allOf": [{"$ref": "#/$defs/Open"}]},
        {"allOf": [A, {"additionalProperties": True}]},
        {**A, "anyOf": [{"additionalProperties": INT}]},
        {**A, "additionalProperties": True, "anyOf": [{"properties": {"z": INT}}]},
    ],
    ids=lambda one: json.dumps(one)[:60],
)
def test_one_that_says_that_it_is_open_stays_open(schema: dict[str, Any]) -> None:
    assert accepts(schema, {"a": 1, "z": 1})


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        ({"type": ["integer", "null"], "exclusiveMinimum": 3}, [4, None], [3, "x", 3.5]),
        ({"type": ["number", "string"], "maximum": 0.25, "maxLength": 2}, [0.25, "ab"], [0.5, "abc", None]),
        ({"type": "string", "nullable": True}, ["a"], [3]),
        ({"anyOf": [{"type": "integer", "minimum": 3}, {"type": "null"}]}, [3, None], [2]),
        ({"type": "integer", "anyOf": [{"maximum": 3}, {"minimum": 10}]}, [3, 10], [5, 9]),
        ({"minimum": 2, "anyOf": [{"type": "integer"}, {"type": "string"}]}, [2, "x"], [1, None]),
        ({"allOf": [{"type": "integer", "exclusiveMinimum": 0}, {"exclusiveMaximum": 2}]}, [1], [0, 2]),
        ({"type": "integer", "multipleOf": 3, "exclusiveMinimum": 3}, [6], [3, 7]),
        ({"type": "integer", "enum": [1, "a", 2**60]}, [1, 2**60], ["a", 2**60 + 1]),
    ],
    ids=lambda one: json.dumps(one)[:60],
)
def test_types_and_alternatives_are_those_of_jsonschema(
    schema: dict[str, Any], valid: list[Any], invalid: list[Any]
) -> None:
    judge = jsonschema.Draft202012Validator(schema)
    assert all(judge.is_valid(one) and accepts(schema, one) for one in valid)
    assert not any(judge.is_valid(one) or accepts(schema, one) for one in invalid)
