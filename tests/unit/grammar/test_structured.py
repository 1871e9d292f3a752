"""Whatever a model would rather write, what the masks leave is valid; what can't be is refused with a sentence."""

from __future__ import annotations

import json
import re
import threading
import time
from random import Random
from typing import Any

import jsonschema
import pytest

from bench.random_schemas import random_schemas
from qserve.engines.transformers.worker.grammar.compiled import GrammarTooComplex
from qserve.grammar.structured import structured_grammar
from qserve.wire.errors import ApiError
from qserve.wire.openai import ChatCompletionRequest
from qserve.wire.structured import StructuredOutputs
from tests.unit.grammar.drawing import drawn, ready

NUM_SCHEMAS = 500


def grammar(**structure: Any) -> str:
    return structured_grammar(StructuredOutputs.model_validate(structure))


def test_answers_to_random_schemas_are_valid() -> None:
    rng = Random(7)
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    for number, schema in enumerate(random_schemas(rng, NUM_SCHEMAS)):
        text = drawn(grammar(json=schema), rng)
        try:
            jsonschema.Draft202012Validator(schema, format_checker=checker).validate(json.loads(text))
        except (ValueError, jsonschema.ValidationError) as error:
            pytest.fail(f"schema {number}, {json.dumps(schema)}, got {text!r}: {error}")


def test_any_json_object() -> None:
    rng = Random(1)
    for structure in ({"json_object": True}, {"json": {}}, {"json": '{"type": "object"}'}):
        assert json.loads(drawn(grammar(**structure), rng)) is not ...


@pytest.mark.parametrize("pattern", [r"[0-9]{3}-[a-z]{1,5}", "^(yes|no)$", r"a\$", r"x{2,4}\\$"])
def test_a_regex_is_matched_whole(pattern: str) -> None:
    rng = Random(2)
    for _ in range(5):
        assert re.fullmatch(pattern.removeprefix("^"), drawn(grammar(regex=pattern), rng))


def test_a_choice_is_one_of_them() -> None:
    choices = ["yes", 'no "really"\n', "größer", "yesterday"]
    rng = Random(3)
    assert {drawn(grammar(choice=choices), rng) for _ in range(40)} <= set(choices)


@pytest.mark.parametrize("text", ['start: "x" /[0-9]{2}/', 'root ::= "x" [0-9] [0-9]'], ids=["lark", "ebnf"])
def test_a_grammar_in_either_syntax(text: str) -> None:
    assert re.fullmatch("x[0-9]{2}", drawn(grammar(grammar=text), Random(4)))


def test_objects_are_closed_where_the_schema_does_not_say() -> None:
    rng = Random(5)
    schema = {"type": "object", "properties": {"a": {"type": "integer", "maximum": 9, "minimum": 0}}}
    assert {name for _ in range(20) for name in json.loads(drawn(grammar(json=schema), rng))} <= {"a"}


def test_parts_of_an_all_of_are_not_closed() -> None:
    parts = [{"properties": {name: {"type": "boolean"}}, "required": [name]} for name in ("a", "b")]
    schema = {"type": "object", "allOf": parts, "properties": {"c": {"type": "null"}}, "required": ["c"]}
    text = drawn(grammar(json=schema), Random(6))
    jsonschema.validate(json.loads(text), schema)


RECURSIVE = {
    "$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}, "required": ["next"]}},
    "$ref": "#/$defs/node",
}
WIDE = {"anyOf": [{"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(99)}}] * 400}
MANY = {"type": "object", "properties": {f"p{number}": {"type": "string"} for number in range(2000)}}


@pytest.mark.parametrize(
    ("structure", "why"),
    [
        ({"json": {"type": "integer", "minimum": 5, "maximum": 3}}, "minimum"),
        ({"json": {"allOf": [{"type": "string"}, {"type": "integer"}]}}, "incompatible"),
        ({"json": {"not": {}}}, "not"),
        ({"json": {"type": "array", "uniqueItems": True}}, "uniqueItems"),
        ({"json": {"type": "strong"}}, "strong"),
        ({"json": {"$ref": "#"}}, "no end"),
        ({"json": RECURSIVE}, "no end"),
        ({"json": {"enum": [f"value {number}" for number in range(100_000)]}}, "too large"),
        ({"json": WIDE}, "too large"),
        ({"json": {"oneOf": [{"type": "integer"}, {"type": "number"}]}}, "anyOf"),
        ({"regex": "(("}, "unclosed group"),
        ({"regex": "(" * 20_000 + "a" + ")" * 20_000}, "nest"),
        ({"regex": "(a{1000}){1000}"}, "too large"),
        ({"json": MANY}, "too large"),
        ({"regex": "(?=a)b"}, "look-around"),
        ({"regex": "(a?){3000}a{3000}"}, "too large"),
        ({"json": {"$ref": "http://127.0.0.1/x"}}, "from elsewhere"),
        ({"grammar": "root ::= missing"}, "missing"),
        ({"grammar": "foo bar"}, "::="),
        ({"grammar": "start: " + "(" * 20_000 + '"a"' + ")" * 20_000}, "nested"),
    ],
    ids=lambda one: json.dumps(one)[:40],
)
def test_what_no_answer_can_follow_is_refused_with_a_sentence(structure: dict[str, Any], why: str) -> None:
    with pytest.raises((GrammarTooComplex, ApiError), match=why) as caught:
        ready(grammar(**structure))
    assert len(str(caught.value)) < 500
    assert caught.value.code == "invalid_grammar"


def test_a_deep_schema_is_refused() -> None:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(500):
        schema = {"type": "array", "items": schema}
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "structured_outputs": {"json": schema}}
    with pytest.raises(ApiError, match=r"depth|recursion") as caught:
        ChatCompletionRequest.parse(json.dumps(body).encode())
    assert len(str(caught.value)) < 3000


def test_an_expensive_grammar_does_not_hold_other_threads() -> None:
    """The interpreter is let go of while a grammar is made: a stream in another thread goes on."""
    ticks = []
    is_over = threading.Event()

    def tick() -> None:
        while not is_over.wait(0.001):
            ticks.append(time.monotonic())

    ticking = threading.Thread(target=tick)
    ticking.start()
    ready(grammar(json={"type": "array", "items": {"type": "integer"}, "minItems": 5_000, "maxItems": 10_000}))
    is_over.set()
    ticking.join(10)
    assert len(ticks) > 3
