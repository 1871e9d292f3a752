"""What xgrammar lets through of a schema that was brought into its words is valid; what it can't hold is refused."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import jsonschema
import numpy
import pytest
from hypothesis import example, given, settings

from bench.random_schemas import random_schemas
from qserve.engines.vllm.launch.plugins.schema_grammars import json_grammar
from qserve.engines.vllm.wire.unenforceable import UnenforceableSchema
from qserve.engines.vllm.wire.xgrammar.schema import schema_for_xgrammar
from qserve.grammar.number_bounds import closed_bounds
from tests.unit.grammar.drawing import ENDS, TOKENIZER
from tests.unit.grammar.numbers import check_held, numbers

xgrammar = pytest.importorskip("xgrammar")

CHECKER = jsonschema.Draft202012Validator.FORMAT_CHECKER
VOCABULARY = [TOKENIZER.id_to_token(one) for one in range(TOKENIZER.get_vocab_size())]
_CLOSING = frozenset(TOKENIZER.encode('"}],</>\n', add_special_tokens=False).ids)
_ASCII = frozenset(at for at, token in enumerate(VOCABULARY) if token.isascii())
A = {"a": {"type": "integer"}}
LEAF = {"$defs": {"leaf": {"type": "integer", "minimum": 3}}}
CAT = {"type": "object", "properties": {"kind": {"const": "cat"}}, "required": ["kind"]}
DOG = {"type": "object", "properties": {"kind": {"const": "dog"}, "age": {"type": "integer"}}, "required": ["kind"]}


@pytest.fixture(scope="module")
def compiler() -> Any:
    about = xgrammar.TokenizerInfo(VOCABULARY, xgrammar.VocabType.BYTE_LEVEL, stop_token_ids=sorted(ENDS))
    return xgrammar.GrammarCompiler(about, max_threads=1)


def lets_through(schema: dict[str, Any], text: str) -> bool:
    grammar = xgrammar.Grammar.from_ebnf(json_grammar(json.dumps(schema), any_whitespace=False, separators=(",", ":")))
    return bool(xgrammar.testing._is_grammar_accept_string(grammar, text))


def drawn(compiler: Any, schema: dict[str, Any], rng: Random, most: int = 400) -> str | None:
    """A random answer; None where it has not ended in time. What closes something is drawn more often."""
    made = compiler.compile_grammar(json_grammar(json.dumps(schema), any_whitespace=False, separators=(",", ":")))
    matcher, mask, ids = xgrammar.GrammarMatcher(made), xgrammar.allocate_token_bitmask(1, len(VOCABULARY)), []
    while len(ids) < most:
        mask.fill_(-1)
        matcher.fill_next_token_bitmask(mask)
        bits = numpy.unpackbits(mask[0].numpy().view(numpy.uint8), bitorder="little")[: len(VOCABULARY)]
        allowed = numpy.flatnonzero(bits).tolist()
        ends = [one for one in allowed if one in ENDS]
        if ends and (len(ends) == len(allowed) or rng.random() < 0.5):
            return str(TOKENIZER.decode(ids, skip_special_tokens=False))
        # Of other bytes xgrammar makes characters that are none, of which no model has learned to write any.
        allowed = [one for one in allowed if one in _ASCII] or allowed
        closing = [one for one in allowed if one in _CLOSING]
        ids.append(
            rng.choice(closing if closing and rng.random() < 0.5 else [one for one in allowed if one not in ENDS])
        )
        assert matcher.accept_token(ids[-1])
    return None


def test_answers_to_random_schemas_are_valid(compiler: Any) -> None:
    rng, num_ended = Random(7), 0
    for schema in random_schemas(rng, 500):
        text = drawn(compiler, schema_for_xgrammar(schema), rng)
        if text is not None:
            jsonschema.Draft202012Validator(schema, format_checker=CHECKER).validate(json.loads(text))
            num_ended += 1
    assert num_ended > 450


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        ({"type": "string", "format": "ipv4"}, '"1.0.1.0"', '"1.0.001.000"'),
        ({"type": "string", "format": "date"}, '"2024-02-29"', '"2023-02-29"'),
        ({"type": "string", "format": "date"}, '"2000-02-29"', '"1900-02-29"'),
        ({"type": "string", "format": "date-time"}, '"2024-04-30T10:00:00Z"', '"2024-04-31T10:00:00Z"'),
        ({"type": "string", "format": "time"}, '"23:59:59.5+01:00"', '"10:00:60Z"'),
        ({"type": "string", "format": "color", "maxLength": 2}, '"ab"', '"abc"'),
        ({"type": "string", "maxLength": 2}, '"é"', '"\x01"'),
        ({"minLength": 2}, '"ab"', '"a"'),
        ({"type": ["string", "null"], "minLength": 2}, "null", '"a"'),
        ({"minimum": 5}, "7", "3"),
        ({"type": "array", "minItems": 2, "maxItems": 3}, '[1,"b"]', "[1]"),
        ({"type": "array", "items": [{"type": "integer"}], "additionalItems": False}, "[1]", "[1,2]"),
        ({"type": "object", "required": ["a"]}, '{"a":null}', "{}"),
        ({"type": "object", "properties": A, "required": ["b"], "additionalProperties": True}, '{"b":1}', '{"a":1}'),
        ({"type": "object", "minProperties": 1}, '{"x":1}', "{}"),
        ({"type": "object", "properties": A}, "{}", '{"b":1}'),
        ({"type": "object", "patternProperties": {"^x+$": {"type": "null"}}}, '{"xx":null}', '{"y":null}'),
        ({"allOf": [{"type": "integer", "minimum": 3}]}, "3", "2"),
        ({"type": "string", "enum": ["a", 1]}, '"a"', "1"),
        ({"type": "integer", "anyOf": [{"const": 1}, {"minimum": 5, "type": "integer"}]}, "5", "2"),
        ({"oneOf": [CAT, DOG]}, '{"kind":"dog","age":3}', '{"kind":"cat","age":3}'),
        (
            {
                "$defs": {"cat": CAT, "dog": DOG},
                "oneOf": [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}],
                "discriminator": {"propertyName": "kind"},
            },
            '{"kind":"cat"}',
            '{"kind":"cow"}',
        ),
        ({**LEAF, "type": "object", "properties": {"x": {"$ref": "#/$defs/leaf", "title": "t"}}}, '{"x":3}', '{"x":2}'),
    ],
    ids=lambda one: json.dumps(one)[:50] if isinstance(one, dict) else "",
)
def test_what_xgrammar_would_leave_out_binds(schema: dict[str, Any], valid: str, invalid: str) -> None:
    held = schema_for_xgrammar(schema)
    assert lets_through(held, valid) and not lets_through(held, invalid)


@pytest.mark.parametrize(("least", "most"), [(0, 5), (3, 129), (0, 1000), (1000, 1100), (40, None)])
def test_a_bound_on_the_length_lets_in_what_json_has(least: int, most: int | None) -> None:
    schema = {"type": "string", "minLength": least, **({} if most is None else {"maxLength": most})}
    held = schema_for_xgrammar(schema)
    for number in (least, least + 1, min(least + 700 if most is None else most, 1100)):
        assert lets_through(held, json.dumps("a" * number))
    outside = [*([least - 1] if least else []), *([most + 1] if most is not None and most <= 1100 else [])]
    assert not any(lets_through(held, json.dumps("a" * number)) for number in outside)
    for wrong in ('"', "\\", "\x01", "\n"):
        assert not lets_through(held, '"' + wrong * max(least, 1) + '"')


def test_a_very_long_string_may_be_shorter() -> None:
    assert schema_for_xgrammar({"maxLength": 9000}) == schema_for_xgrammar({"maxLength": 8192})


@pytest.mark.parametrize(
    ("schema", "name"),
    [
        ({"not": {}}, "not"),
        ({"if": {}, "then": {}}, "if"),
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"contains": {"const": 1}}, "contains"),
        ({"multipleOf": 5}, "multipleOf"),
        ({"allOf": [{"type": "integer"}, {"minimum": 3}]}, "allOf"),
        ({"type": "integer", "allOf": [{"minimum": 3}]}, "allOf"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf"),
        ({"anyOf": [{"const": 1}], "minimum": 3}, "anyOf"),
        ({"enum": ["a"], "maxLength": 1}, "enum"),
        ({"const": 3, "type": "string"}, "const"),
        ({**LEAF, "$ref": "#/$defs/leaf", "maximum": 4}, "ref"),
        ({"$ref": "http://x/y"}, "ref"),
        ({"$ref": "#q"}, "ref"),
        ({"pattern": "^(?=a)b"}, "pattern"),
        ({"pattern": "^\\\\$"}, "pattern"),
        ({"pattern": "a", "maxLength": 3}, "pattern"),
        ({"pattern": "^.{0,200}$"}, "pattern"),
        ({"minLength": 9000}, "minLength"),
        ({"format": "ipv4", "maxLength": 8}, "format"),
        ({"properties": A, "required": ["b"]}, "required"),
        ({"dependentRequired": {"a": ["b"]}, "properties": A}, "dependentRequired"),
        ({"properties": A, "patternProperties": {"x": {}}}, "patternProperties"),
    ],
    ids=lambda one: json.dumps(one)[:50],
)
def test_what_it_can_not_hold_is_refused_by_name(schema: dict[str, Any], name: str) -> None:
    inside = {"type": "object", "properties": {"deep": {"type": "array", "items": schema}}}
    definitions = {"$defs": schema["$defs"]} if "$defs" in schema else {}
    for one in (schema, {**definitions, **inside}):
        with pytest.raises(UnenforceableSchema, match=name):
            schema_for_xgrammar(one)


@pytest.mark.parametrize("schema", [{"type": "wrong"}, {"type": ["wrong"]}, {"type": 5}, {"type": [{}]}, {"$ref": 3}])
def test_what_is_no_schema_is_left_to_the_engine_to_refuse(schema: dict[str, Any]) -> None:
    try:
        held = schema_for_xgrammar(schema)
    except UnenforceableSchema:
        return
    with pytest.raises(RuntimeError):
        lets_through(held, "1")


@given(numbers())
@example({"type": "number", "exclusiveMinimum": 0, "maximum": 0.5})
@example({"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1})
@example({"type": "integer", "minimum": 0.5, "maximum": 7.5, "exclusiveMinimum": True})
@example({"type": "number", "maximum": 2**53 + 1})
@example({"type": "number", "minimum": 0, "exclusiveMinimum": 1.7976931348623157e308})
@example({"type": "number", "exclusiveMaximum": 10**400})
@example({"type": "integer", "minimum": -(10**400)})
@settings(max_examples=60)
def test_bounds_of_numbers_hold_and_are_reached(schema: dict[str, Any]) -> None:
    """To six places behind the point, within int64."""
    try:
        held = schema_for_xgrammar(schema)
        grammar = xgrammar.Grammar.from_json_schema(json.dumps(held), any_whitespace=False, separators=(",", ":"))
    except UnenforceableSchema as error:
        assert "int64" in str(error) or "six places" in str(error)
        return
    except RuntimeError:
        low, high = closed_bounds(schema, is_whole=schema["type"] == "integer")
        assert low is not None and high is not None and low > high
        return
    held_by = lambda text: bool(xgrammar.testing._is_grammar_accept_string(grammar, text))  # noqa: E731
    check_held(schema, held_by, num_places=6, only_doubles=True)
