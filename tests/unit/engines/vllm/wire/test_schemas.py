"""JSON schemas on their way to vLLM, wherever they stand in a body: bound, or refused with the keyword's name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from qserve.engines.vllm.wire.schemas import with_enforceable_schemas
from qserve.engines.vllm.wire.xgrammar.width import width_of
from qserve.grammar.endless import has_an_end
from qserve.wire.errors import ApiError

LOOSE = {"type": "string", "format": "ipv4"}
NOT_HELD = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}


def of(schema: Any) -> dict[str, Any]:
    """Parameters of which one is so."""
    return {"type": "object", "properties": {"a": schema}, "required": ["a"]}


def in_function(parameters: Any, **fields: Any) -> dict[str, Any]:
    return {"tools": [{"type": "function", "function": {"name": "f", "parameters": parameters, **fields}}]}


PLACES = {
    "chat": lambda schema: {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}},
    "structured": lambda schema: {"structured_outputs": {"json": schema}},
    "as text": lambda schema: {"structured_outputs": {"json": json.dumps(schema)}},
    "responses": lambda schema: {"text": {"format": {"type": "json_schema", "name": "s", "schema": schema}}},
    "messages": lambda schema: {"output_config": {"format": {"type": "json_schema", "schema": schema}}},
    "tokens": lambda schema: {"sampling_params": {"structured_outputs": {"json": schema}}},
    "a strict tool": lambda schema: in_function(of(schema), strict=True),
    "a strict tool of responses": lambda schema: {"tools": [{"name": "f", "parameters": of(schema), "strict": True}]},
    "a strict tool of messages": lambda schema: {"tools": [{"name": "f", "input_schema": of(schema), "strict": True}]},
}


@pytest.mark.parametrize("place", PLACES)
def test_a_schema_is_bound_wherever_it_stands(place: str) -> None:
    body = {"model": "m", **PLACES[place](LOOSE)}
    before = json.dumps(body)
    changed = with_enforceable_schemas(body, "xgrammar")
    assert changed is not None and "25[0-5]" in json.dumps(changed) and "ipv4" not in json.dumps(changed)
    assert changed["model"] == "m" and json.dumps(body) == before


@pytest.mark.parametrize("place", PLACES)
def test_what_would_be_ignored_is_refused_by_name(place: str) -> None:
    with pytest.raises(ApiError, match="'uniqueItems'") as refused:
        with_enforceable_schemas(PLACES[place](NOT_HELD), "xgrammar")
    assert (refused.value.status, refused.value.code) == (400, "invalid_grammar")
    assert refused.value.param in PLACES[place](NOT_HELD)


def test_who_holds_it_is_named() -> None:
    with pytest.raises(ApiError, match="--engine transformers"):
        with_enforceable_schemas(PLACES["chat"]({"type": "integer", "multipleOf": 5}), "xgrammar")


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [{"role": "user", "content": "x"}]},
        {"response_format": {"type": "json_object"}, "text": None, "tools": None},
        {"response_format": "x", "structured_outputs": {"json": "no schema"}, "tools": [3, {"function": 3}]},
        PLACES["chat"]({"type": "integer", "minimum": 3}),
        in_function(of(NOT_HELD)),
    ],
)
def test_what_is_bound_already_stays_byte_for_byte(body: dict[str, Any]) -> None:
    assert with_enforceable_schemas(body, "xgrammar") is None


def test_a_library_of_the_users_gets_what_it_takes() -> None:
    body = PLACES["chat"]({"type": "object", "properties": {"n": {"type": "integer", "multipleOf": 5}}})
    assert with_enforceable_schemas(body, "outlines") is None and with_enforceable_schemas(body, "") is None
    changed = with_enforceable_schemas(body, "guidance")
    assert changed is not None and changed["response_format"]["json_schema"]["schema"]["additionalProperties"] is False


def test_a_schema_that_is_too_deep_is_refused() -> None:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(2000):
        schema = {"type": "array", "items": schema}
    with pytest.raises(ApiError, match="deep"):
        with_enforceable_schemas(PLACES["chat"](schema), "xgrammar")


NODE: dict[str, Any] = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}
MAYBE = {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}


@pytest.mark.parametrize(
    ("schema", "ends"),
    [
        ({"$ref": "#"}, False),
        ({"type": "array", "items": {"$ref": "#"}, "minItems": 1}, False),
        ({"type": "array", "items": {"$ref": "#"}}, True),
        ({"$defs": {"node": {**NODE, "required": ["next"]}}, "$ref": "#/$defs/node"}, False),
        ({"$defs": {"node": NODE}, "$ref": "#/$defs/node"}, True),
        (
            {"$defs": {"node": {**NODE, "properties": {"next": MAYBE}, "required": ["next"]}}, "$ref": "#/$defs/node"},
            True,
        ),
    ],
)
def test_a_schema_without_an_end_is_refused(schema: dict[str, Any], ends: bool) -> None:
    """vLLM answers 500 to the first, and writes to the limit of tokens for the others."""
    if ends:
        with_enforceable_schemas(PLACES["chat"](schema), "xgrammar")
        return
    for library in ("xgrammar", "guidance"):
        with pytest.raises(ApiError, match="it has no end") as refused:
            with_enforceable_schemas(PLACES["chat"](schema), library)
        assert (refused.value.status, refused.value.code) == (400, "invalid_grammar")


def test_looking_for_an_end_is_bounded() -> None:
    names = [f"n{number}" for number in range(60)]
    everyone = {"type": "array", "minItems": 1, "items": {"anyOf": [{"$ref": f"#/$defs/{name}"} for name in names]}}
    assert has_an_end({"$defs": dict.fromkeys(names, everyone), "$ref": "#/$defs/n0"}), "it is left to the engine"


def test_a_function_without_parameters_takes_none() -> None:
    for tool in ({"type": "function", "function": {"name": "now"}}, {"type": "function", "name": "now"}):
        changed = with_enforceable_schemas({"tools": [tool]}, "xgrammar")
        assert changed is not None
        (bound,) = changed["tools"]
        assert bound.get("function", bound)["parameters"] == {
            "type": "object",
            "properties": {},
            "additionalProperties": False,
        }


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"type": "string"}, "one of type 'object'"),
        ({"$defs": {"node": {**NODE, "required": ["next"]}}, "$ref": "#/$defs/node"}, "has no end.*'f'"),
    ],
)
def test_parameters_that_no_call_can_follow_are_refused(parameters: dict[str, Any], words: str) -> None:
    """vLLM answers 200, with a call that nobody can read."""
    with pytest.raises(ApiError, match=words) as refused:
        with_enforceable_schemas(in_function(parameters), "xgrammar")
    assert refused.value.param == "tools"


def properties(number: int, *, num_required: int = 0) -> dict[str, Any]:
    names = [f"p{index}" for index in range(number)]
    return {
        "type": "object",
        "properties": {name: {"type": "null"} for name in names},
        "required": names[:num_required],
    }


TOO_LARGE = {
    "optional of one": of(properties(257)),
    "optional": of({"type": "array", "prefixItems": [properties(206)] * 5}),
    "properties": properties(2001, num_required=2001),
    "values": of({"enum": [*range(2501)], "anyOf": [{}] * 2500}),
    "patterns": of({"type": "array", "prefixItems": [{"type": "string", "pattern": "a?b*" * 65}] * 2}),
    "pattern": of({"type": "string", "pattern": "a{0,1}" * 129 + "b{,1}" * 128}),
    "number of properties": of({**properties(65), "minProperties": 5}),
    "lengths": of({"type": "array", "prefixItems": [{"type": "string", "maxLength": 9 * one} for one in range(17)]}),
    "any characters": of({"type": "string", "pattern": "^.{0,64}-.{0,65}$"}),
    "any characters in groups": of({"type": "string", "pattern": "^(a|ab|[^c]{1,9}){1,10}$"}),
    "any characters in a name": of({"type": "object", "patternProperties": {"^" + ".?" * 33: {}}}),
}


@pytest.mark.parametrize("name", TOO_LARGE)
def test_what_would_be_compiled_for_minutes_is_refused(name: str) -> None:
    """Others' structures wait for it."""
    for body in (PLACES["chat"](TOO_LARGE[name]), PLACES["as text"](TOO_LARGE[name]), in_function(TOO_LARGE[name])):
        with pytest.raises(ApiError, match="--engine transformers") as refused:
            with_enforceable_schemas(body, "xgrammar")
        assert refused.value.code == "invalid_grammar" and refused.value.param in body


def test_patterns_and_grammars_of_whole_answers_are_bounded() -> None:
    for structure in (
        {"regex": "a?" * 257},
        {"regex": r"\S?" * 17},
        {"grammar": "root ::= " + "[^x]? " * 17},
        {"grammar": "root ::= " + '"a"? ' * 257},
        {"choice": ["x"] * 5001},
    ):
        with pytest.raises(ApiError, match="--engine transformers"):
            with_enforceable_schemas({"structured_outputs": structure}, "xgrammar")
    assert with_enforceable_schemas({"structured_outputs": {"regex": r"a\?" * 300 + "b?" * 200}}, "xgrammar") is None


def test_what_people_write_is_not_too_large() -> None:
    assert with_enforceable_schemas(in_function(properties(200, num_required=3)), "xgrammar") is None
    assert with_enforceable_schemas(in_function(properties(1000, num_required=900)), "xgrammar") is None
    bounded = {f"p{one}": {"type": "string", "maxLength": 100 * (1 + one % 16)} for one in range(64)}
    tool = {"type": "object", "properties": bounded, "required": list(bounded)}
    assert with_enforceable_schemas(in_function(tool), "xgrammar") is None
    patterns = (
        r"^[^@]+@[^@]+\.[a-z]{2,9}$",
        "^[a-z]{0,128}-[a-z]{0,128}$",
        "^.{0,128}$",
        "^[0-9a-f]{8}(-[0-9a-f]{4}){3}$",
        "^([^,]*,){3}[^,]*$",
    )
    for pattern in patterns:
        assert with_enforceable_schemas(in_function(of({"type": "string", "pattern": pattern})), "xgrammar") is None
    assert with_enforceable_schemas({"structured_outputs": {"regex": ".{0,100}a" * 10}}, "xgrammar") is None


def test_a_length_below_none_is_refused_in_a_tool_too() -> None:
    with pytest.raises(ApiError, match="'minLength' in the structure is -1; it can be 0 or more"):
        with_enforceable_schemas(in_function(of({"type": "string", "minLength": -1})), "xgrammar")


def test_counts_are_bounded_where_the_library_multiplies_by_them() -> None:
    huge = {"type": "array", "items": {"type": "integer"}, "maxItems": 10**9}
    for body in (
        PLACES["chat"](huge),
        PLACES["as text"](huge),
        in_function(of(huge)),
        {"structured_outputs": {"grammar": f"start: %json {json.dumps(huge)}"}},
    ):
        with pytest.raises(ApiError, match="'maxItems' in the structure is 1,000,000,000"):
            with_enforceable_schemas(body, "guidance")


@pytest.mark.parametrize("pattern", ["(.{2,}){" + "1" * 5000 + "}", "[" * 50_000, "{" * 50_000, "{1" * 50_000])
def test_a_pattern_of_thousands_of_digits_or_brackets_is_measured(pattern: str) -> None:
    """Python reads no such number, and each bracket would be looked for its end."""
    assert width_of(pattern, copies=True).ways >= 0
