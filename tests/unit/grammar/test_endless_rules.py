"""Grammars that no text ends are found, in both dialects; whatever else there is goes to the engine."""

from __future__ import annotations

import pytest

from qserve.engines.vllm.wire.schemas import with_enforceable_schemas
from qserve.grammar.endless_rules import TooDeep, rules_have_an_end
from qserve.wire.errors import ApiError

JSON = r"""
root ::= object
object ::= "{" ws (string ":" ws value ("," ws string ":" ws value)*)? "}" ws
value ::= object | array | string | [0-9]+
array ::= "[" ws (value ("," ws value)*)? "]" ws  # a list
string ::= "\"" ([^"\\] | "\\" ["\\/bfnrt])* "\"" ws
ws ::= [ \t\n]*
"""
ENDLESS = [
    "root ::= root",
    'root ::= root "a"',
    'root ::= "x" root',
    "root ::= (root)",
    "root ::= [a-z] root # root",
    "root ::= a b\na ::= b\nb ::= a",
    "root ::= a{2,3}\na ::= a{1,2}",
    'root ::= "a" (root | root "b")+',
    "start: start",
    'start: "a" start',
    "?start.2: x -> y\n!x: /[a-z]+/ start",
]
ENDING = [
    JSON,
    'root ::= root "a" | "a"',
    'root ::= "a" root | "b"',
    "root ::= a?\na ::= a",
    'root ::= a*\na ::= "x" a',
    'root ::= (root | "x")+',
    'root ::= ""',
    "root ::= | root",
    "root ::= a{0,3}\na ::= a",
    "root ::= b{,2}\nb ::= b",
    "?start.2: [x] -> y\nx: x",
    "start: A+ /b+/i | start\n%import common.A",
    'start: "a" start | "b" // start\n',
]
NOT_READ = ["", "no rules", "root ::= missing", 'root ::= TagDispatch(("a", b))', "main ::= main", "root ::= (", "}{"]


@pytest.mark.parametrize("grammar", ENDLESS)
def test_no_text_ends_it(grammar: str) -> None:
    assert not rules_have_an_end(grammar)
    for body in (
        {"structured_outputs": {"grammar": grammar}},
        {"sampling_params": {"structured_outputs": {"grammar": grammar}}},
    ):
        with pytest.raises(ApiError, match="it has no end") as refused:
            with_enforceable_schemas(body, "xgrammar")
        assert (refused.value.status, refused.value.code) == (400, "invalid_grammar")
        assert refused.value.param in body


@pytest.mark.parametrize("grammar", [*ENDING, *NOT_READ])
def test_some_text_ends_it_or_the_engine_says_what_is_wrong(grammar: str) -> None:
    assert rules_have_an_end(grammar)
    assert with_enforceable_schemas({"structured_outputs": {"grammar": grammar}}, "xgrammar") is None


def test_what_is_nested_beyond_reason_is_refused() -> None:
    grammar = "root ::= " + "(" * 5000
    with pytest.raises(TooDeep):
        rules_have_an_end(grammar)
    with pytest.raises(ApiError, match="nested too deeply"):
        with_enforceable_schemas({"structured_outputs": {"grammar": grammar}}, "xgrammar")


def test_large_ones_are_left_to_the_engine() -> None:
    """It is the gateway that reads them."""
    assert rules_have_an_end("root ::= " + "root " * 20_000)
    chain = "root ::= " + " ".join(f"a{i}" for i in range(2500)) + "".join(f"\na{i} ::= [a-z] |" for i in range(2500))
    assert rules_have_an_end(chain)
