"""Numbers that a grammar library multiplies by have a bound, wherever in a schema they stand; data has none."""

from __future__ import annotations

import json
from typing import Any

import pytest

from qserve.grammar.counts import check_counts, check_counts_within
from qserve.grammar.structured import structured_grammar
from qserve.grammar.tool_calls import tool_call_grammar
from qserve.wire.errors import ApiError
from qserve.wire.structured import StructuredOutputs
from qserve.wire.tools import Tool

HUGE: tuple[tuple[str, Any], ...] = (
    ("maxItems", 10**9),
    ("maxItems", 10_001),
    ("maxItems", 1e300),
    ("minItems", 10**8),
    ("minItems", 10**400),
    ("multipleOf", 1_000_003),
    ("multipleOf", 2**31),
    ("multipleOf", 1000.003),
    ("multipleOf", 1e-9 / 3),
    ("multipleOf", 10**30 + 7),
)
FINE: tuple[tuple[str, Any], ...] = (
    ("maxItems", 10_000),
    ("minItems", 0),
    ("multipleOf", 0.01),
    ("multipleOf", 86_400),
    ("multipleOf", 3_600_000),
    ("multipleOf", 1e12),
    ("multipleOf", 65_536),
    ("maxLength", 2**31 - 1),
    ("maximum", 2**63),
    ("minProperties", 10**9),
)
PLACES = (
    lambda one: one,
    lambda one: {"type": "object", "properties": {"maxItems": one}, "required": ["maxItems"]},
    lambda one: {"anyOf": [{"type": "null"}, {"type": "array", "items": one}]},
    lambda one: {"$ref": "#/$defs/x", "$defs": {"x": one}},
    lambda one: {"type": "object", "patternProperties": {"^a": {"allOf": [one]}}},
)


def schema(keyword: str, value: Any) -> dict[str, Any]:
    return {"type": "array" if keyword.endswith("Items") else "number", keyword: value}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("keyword", "value"), HUGE)
def test_what_is_beyond_is_refused_by_name_wherever_it_stands(keyword: str, value: Any, place: Any) -> None:
    with pytest.raises(ApiError, match=f"'{keyword}' in the structure is .*; it can be at most 1.*0,000") as caught:
        check_counts(place(schema(keyword, value)), "response_format")
    assert (caught.value.status, caught.value.code, caught.value.param) == (400, "invalid_grammar", "response_format")
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("keyword", "value"), FINE)
def test_what_is_within_is_taken(keyword: str, value: Any, place: Any) -> None:
    check_counts(place(schema(keyword, value)), "response_format")


def test_data_is_no_keyword() -> None:
    for name in ("const", "default", "examples"):
        check_counts({name: {"maxItems": 10**9}}, "response_format")
    check_counts({"enum": [{"maxItems": 10**9}], "maxItems": True, "multipleOf": "x"}, "response_format")


def test_every_way_in_is_bound() -> None:
    huge = {"type": "object", "properties": {"a": schema("maxItems", 10**9)}}
    tool = Tool.model_validate({"type": "function", "function": {"name": "f", "parameters": huge}})
    ways = (
        lambda: structured_grammar(StructuredOutputs.model_validate({"json": huge})),
        lambda: structured_grammar(StructuredOutputs.model_validate({"json": json.dumps(huge)})),
        lambda: structured_grammar(StructuredOutputs.model_validate({"grammar": f"start: %json {json.dumps(huge)}"})),
        lambda: tool_call_grammar([tool], None, "hermes", is_parallel=True),
        lambda: tool_call_grammar([tool], None, "qwen3_coder", is_parallel=True),
    )
    for way in ways:
        with pytest.raises(ApiError, match="'maxItems' in the structure is 1,000,000,000"):
            way()


def test_a_grammar_that_embeds_no_json_is_left_to_the_library() -> None:
    for lark in (
        "start: %json {",
        'start: "%json" /x/',
        "start: %json {" + "[" * 100_000,
        'start: %json {"maxItems": 1}',
    ):
        check_counts_within(lark, "structured_outputs")


@pytest.mark.parametrize("value", [-1, -0.5, -(10**400)])
@pytest.mark.parametrize("keyword", ["minLength", "maxItems", "minProperties", "maxContains"])
def test_less_than_none_is_refused_for_every_library(keyword: str, value: float) -> None:
    for multiplies in (True, False):
        with pytest.raises(ApiError, match=f"'{keyword}' in the structure is .*-.*; it can be 0 or more"):
            check_counts({"properties": {"a": {keyword: value}}}, "tools", multiplies=multiplies)
    check_counts({keyword: 0, "minimum": -1}, "tools")
