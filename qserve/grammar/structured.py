"""From `response_format`, `structured_outputs` and `guided_*` to a grammar."""

from __future__ import annotations

import json

from llguidance import LLMatcher
from llguidance.gbnf_to_lark import any_to_lark

from qserve.grammar.counts import check_counts, check_counts_within
from qserve.grammar.endless import NO_END, has_an_end
from qserve.grammar.schema import UncarriedNumber, as_rules, prepared, unanchored
from qserve.wire.errors import ApiError
from qserve.wire.structured import StructuredOutputs

__all__ = ["structured_grammar"]


def structured_grammar(structure: StructuredOutputs, param: str = "response_format") -> str:
    """The grammar of the whole answer. Raises ApiError 400, of the field `param`, for what can't be read."""
    try:
        return _grammar(structure, param)
    except UncarriedNumber as error:
        raise ApiError(400, str(error), "invalid_grammar", param) from error
    except (ValueError, RecursionError) as error:  # a schema too deep, EBNF that is none
        message = f"this structure can't be read as a grammar: {str(error)[:300]}"
        raise ApiError(400, message, "invalid_grammar", param) from error


def _grammar(structure: StructuredOutputs, param: str) -> str:
    if structure.regex is not None:
        return LLMatcher.grammar_from_regex(unanchored(structure.regex))
    if structure.choice is not None:
        alternatives = " | ".join(json.dumps(one, ensure_ascii=False) for one in structure.choice)
        return LLMatcher.grammar_from_lark(f"start: {alternatives}")
    if structure.grammar is not None:
        lark = _lark_of(structure.grammar)
        check_counts_within(lark, param)
        return LLMatcher.grammar_from_lark(lark)
    schema = structure.schema_object
    check_counts(schema, param)
    if schema is not None and not has_an_end(schema):  # the library would look for one for a second
        raise ApiError(400, NO_END, "invalid_grammar", param)
    schema = {"type": "object"} if schema is None else schema
    if (rules := as_rules("start", schema)) is not None:
        return LLMatcher.grammar_from_lark("\n".join(["%llguidance {}", *rules]))
    return LLMatcher.grammar_from_json_schema(json.dumps(prepared(schema)))


def _lark_of(grammar: str) -> str:
    """Lark as it is, EBNF as Lark. Raises ValueError for what is neither; the library says so by errors of any kind."""
    try:
        return any_to_lark(grammar)
    except RecursionError:
        raise
    except Exception as error:
        raise ValueError(str(error)) from error
