"""Bounds of numbers hold to the last digit, whatever holds the number."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import jsonschema
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from qserve.engines.transformers.worker.grammar.compiled import GrammarTooComplex
from qserve.grammar.number_bounds import closed_bounds
from qserve.grammar.number_patterns import number_pattern, whole_pattern
from qserve.grammar.schema import as_rules
from qserve.grammar.structured import structured_grammar
from qserve.wire.errors import ApiError
from qserve.wire.structured import StructuredOutputs
from tests.unit.grammar.drawing import TOKENIZER, ready
from tests.unit.grammar.numbers import BOUNDS, check_held, is_valid, numbers, text_of

TENTHS = {"type": "number", "minimum": 0.1, "maximum": 0.35}


class Held:
    """A schema in the library's hands."""

    def __init__(self, schema: Any) -> None:
        self._matcher = ready(structured_grammar(StructuredOutputs.model_validate({"json": schema})))

    def accepts(self, text: str) -> bool:
        ids = TOKENIZER.encode(text, add_special_tokens=False).ids
        matcher = self._matcher.deep_copy()
        return bool(matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting())


def is_empty(schema: dict[str, Any]) -> bool:
    low, high = closed_bounds(schema, is_whole=schema["type"] == "integer")
    beyond_doubles = low == math.inf or high == -math.inf
    return beyond_doubles or (low is not None and high is not None and low > high)


@given(numbers())
@example({"type": "number", "exclusiveMinimum": 0, "maximum": 0.5})
@example({"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1})
@example({"type": "integer", "minimum": 0, "maximum": 2**64 - 1})
@example({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 5e-324})
@example({"type": "number", "minimum": 0, "exclusiveMinimum": 1.7976931348623157e308})
@example({"type": "number", "exclusiveMaximum": 10**400})
@example({"type": "integer", "minimum": -(10**400), "maximum": 3})
@settings(max_examples=120)
def test_bounds_hold_and_are_reached(schema: dict[str, Any]) -> None:
    if is_empty(schema):
        with pytest.raises((GrammarTooComplex, ApiError)):
            Held(schema)
    else:
        check_held(schema, Held(schema).accepts)


HOLDERS = {
    "an object": (
        lambda one: {"type": "object", "properties": {"a": one, 'é"': {"type": "null"}}, "required": ["a"]},
        '{"a": %s}',
        '{"a": %s, "é\\"": null}',
    ),
    "a later property": (
        lambda one: {"properties": {"b": {"type": "null"}, "a": one}, "type": "object"},
        '{"b": null, "a": %s}',
        '{"a": %s}',
    ),
    "a list": (lambda one: {"type": "array", "items": one, "minItems": 1, "maxItems": 3}, "[%s]", "[%s, %s]"),
    "a map": (lambda one: {"type": "object", "additionalProperties": one}, '{"x": %s}', '{"x": %s, "y": %s}'),
    "an alternative": (lambda one: {"anyOf": [one, {"type": "string"}]}, "%s", None),
    "a type of several": (lambda one: {**one, "type": [one["type"], "null"]}, "%s", None),
    "a reference": (
        lambda one: {"$defs": {"n": one}, "type": "object", "properties": {"a": {"$ref": "#/$defs/n"}}},
        '{"a": %s}',
        None,
    ),
    "an allOf": (lambda one: {"allOf": [one], "title": "t"}, "%s", None),
    "two of an allOf": (lambda one: {"allOf": [one, {"type": one["type"]}]}, "%s", None),
}


@pytest.mark.parametrize("holder", HOLDERS)
@given(schema=numbers())
@settings(max_examples=10)
def test_they_hold_in_whatever_holds_the_number(holder: str, schema: dict[str, Any]) -> None:
    wrapped, text, more = HOLDERS[holder]
    if is_empty(schema):
        return
    try:
        held = Held(wrapped(schema))
    except ApiError as error:  # what stands beside it has no rule
        assert "two of an allOf" in holder and "2^53" in str(error)
        return
    if holder == "two of an allOf":
        return
    check_held(schema, lambda number: held.accepts(text % number))
    ends = [value for value in schema.values() if not isinstance(value, bool | str) and is_valid(schema, value)]
    for end in ends if more else ():
        assert held.accepts(more.replace("%s", text_of(end)))


@given(st.lists(BOUNDS, min_size=1, max_size=4), st.booleans())
@example([2**53 + 1, 0.9771985994248502, 1e300, 5e-324], False)
@example([-0.0], False)
def test_listed_numbers_are_written_to_the_last_digit(values: list[int | float], is_deep: bool) -> None:
    schema = {"enum": [{"x": [one]} if is_deep else one for one in values]}
    held = Held(schema)
    for value in values:
        text = json.dumps({"x": [value]}) if is_deep else json.dumps(value)
        minus_zero = value == 0 and held.accepts("-0")
        assert held.accepts(text) or held.accepts(text_of(value)) or minus_zero or is_deep
        for other in (value + 1, -value - 1):
            text = f'{{"x": [{text_of(other)}]}}' if is_deep else text_of(other)
            assert not held.accepts(text) or jsonschema.Draft202012Validator(schema).is_valid(json.loads(text))


@given(BOUNDS, BOUNDS, BOUNDS)
def test_a_pattern_is_the_bounds(one: int | float, other: int | float, value: int | float) -> None:
    low, high = sorted([one, other])
    text = text_of(value)
    pattern = number_pattern(low, high)
    if "." not in text or abs(value) < 2**53:
        held = [text, text + "0" * 400 if "." in text else text + ".0"]
        matched = pattern is not None and any(re.fullmatch(pattern, one) for one in held)
        assert matched == (low <= value <= high) or text == "-0"
    if value == int(value):
        whole = whole_pattern(-int(-low // 1), int(high // 1))
        assert (whole is not None and re.fullmatch(whole, text) is not None) == (low <= value <= high)


@pytest.mark.parametrize(
    "malformed",
    [
        {"type": "array", "items": [TENTHS]},
        {"allOf": {"a": TENTHS}},
        {"anyOf": TENTHS},
        {**TENTHS, "type": 5},
        {**TENTHS, "type": None},
        {**TENTHS, "type": [["number"]]},
        {"type": "object", "properties": {"a": [TENTHS]}},
        {"type": "object", "properties": {"a": TENTHS}, "required": 5, "additionalProperties": False},
        {"type": "object", "properties": {"a": TENTHS}, "required": [["a"]], "additionalProperties": False},
        {"type": "array", "items": TENTHS, "minItems": "a"},
        {"type": "array", "items": TENTHS, "minItems": None},
        {"$ref": "#/$defs/a", "$defs": {"a": [TENTHS]}},
        {"type": "integer", "enum": [math.inf]},
    ],
)
def test_a_malformed_schema_is_left_to_the_library_which_says_what_is_wrong(malformed: dict[str, Any]) -> None:
    assert as_rules("start", malformed) is None


def test_a_count_that_is_written_with_a_point_is_a_count() -> None:
    rules = as_rules("start", {"type": "array", "items": TENTHS, "minItems": 2.0, "maxItems": 3.0})
    assert rules is not None and "{1,2}" in rules[-1]
