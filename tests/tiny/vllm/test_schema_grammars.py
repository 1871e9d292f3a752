"""JSON inside xgrammar's structural tags, compiled as vLLM's server compiles it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
import xgrammar
from hypothesis import given, settings
from hypothesis import strategies as st

from qserve.engines.vllm.launch.plugins.schema_grammars import VARIABLE, json_grammar, tag_with_grammars
from qserve.engines.vllm.wire.xgrammar.schema import schema_for_xgrammar

_BEGIN, _END = "<tool_call>\n", "\n</tool_call>"
_COMPILER = xgrammar.GrammarCompiler(
    xgrammar.TokenizerInfo([*(bytes([byte]) for byte in range(1, 256)), b"<end>"], stop_token_ids=[255])
)
_NAMES = ["a", "b c", "ü", "größe", "Δ1", "日b", "\\xdf", "\t", '"']
_VALUES = st.recursive(
    st.one_of(st.booleans(), st.none(), st.integers(-(10**6), 10**6), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(_NAMES), inner, max_size=3)),
    max_leaves=8,
)


def _schema_of(value: Any) -> dict[str, Any]:
    """One that `value` follows."""
    if isinstance(value, dict):
        properties = {name: _schema_of(one) for name, one in value.items()}
        return {"type": "object", "properties": properties, "required": list(value), "additionalProperties": False}
    if isinstance(value, list):
        return {"type": "array", "prefixItems": [_schema_of(one) for one in value], "items": False}
    kinds = {bool: "boolean", int: "integer", str: "string", type(None): "null"}
    return {"type": kinds[type(value)]}


def _tag(*contents: dict[str, Any]) -> str:
    tags = [{"type": "tag", "begin": _BEGIN, "content": one, "end": _END} for one in contents]
    return json.dumps({"type": "structural_tag", "format": {"type": "or", "elements": tags}})


def _takes(tag: str, text: str) -> bool:
    matcher = xgrammar.GrammarMatcher(_COMPILER.compile_structural_tag(tag_with_grammars(tag, blanks=False)))
    return bool(matcher.accept_string(f"{_BEGIN}{text}{_END}"))


@settings(max_examples=60, deadline=None)
@given(st.one_of(st.lists(_VALUES, max_size=3), st.dictionaries(st.sampled_from(_NAMES), _VALUES, max_size=3)))
def test_a_value_is_written_as_json_dumps_does(value: Any) -> None:
    tag = _tag({"type": "json_schema", "json_schema": _schema_of(value)})
    assert _takes(tag, json.dumps(value, ensure_ascii=False))
    assert not _takes(tag, f" {json.dumps(value, ensure_ascii=False)}")


@pytest.mark.parametrize(
    "text", ['{ "a": [1, 2]}', '{"a" : [1, 2]}', '{"a":  [1, 2]}', '{"a": [1 , 2]}', '{"a": [1,\n2]}']
)
def test_other_blanks_are_not_written(text: str) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "integer"}}}, "required": ["a"]}
    tag = _tag({"type": "json_schema", "json_schema": schema})
    assert xgrammar.GrammarMatcher(_COMPILER.compile_structural_tag(tag)).accept_string(f"{_BEGIN}{text}{_END}")
    assert not _takes(tag, text)
    assert _takes(tag, '{"a": [1, 2]}')


def test_each_schema_of_a_tag_is_held_and_nothing_else_is_changed() -> None:
    text = {"type": "any_text"}
    between_tags = {"type": "json_schema", "style": "qwen_xml", "json_schema": {"type": "object"}}
    unordered = {"type": "json_schema", "any_order": True, "json_schema": {"type": "object"}}
    tag = json.loads(_tag(text, between_tags, unordered, {"type": "json_schema", "json_schema": {"type": "integer"}}))
    found = [
        one["content"] for one in json.loads(tag_with_grammars(json.dumps(tag), blanks=False))["format"]["elements"]
    ]
    assert found[:3] == [text, between_tags, {**unordered, "max_whitespace_cnt": 1}]
    assert found[3]["type"] == "grammar"


def test_a_schema_that_is_none_stays_for_the_library_to_refuse() -> None:
    content = {"type": "json_schema", "json_schema": {"type": "nothing"}}
    assert tag_with_grammars(_tag(content), blanks=False) == _tag(content)


@pytest.mark.parametrize("blanks", [True, False])
@pytest.mark.parametrize("bounds", [{"maxLength": 4}, {"minLength": 1}, {"minLength": 1, "maxLength": 4}], ids=str)
def test_strings_of_bound_length_have_no_control_characters(bounds: dict[str, int], blanks: bool) -> None:
    schema = {"type": "array", "items": {"type": "string", **bounds}}
    tag = tag_with_grammars(_tag({"type": "json_schema", "json_schema": schema}), blanks=blanks)
    compiled = _COMPILER.compile_structural_tag(tag)
    for number in range(0x80):
        text = f'["a{chr(number)}b"]'
        took = xgrammar.GrammarMatcher(compiled).accept_string(f"{_BEGIN}{text}{_END}")
        assert took == (number >= 0x20 and chr(number) not in '"\\'), text


def test_any_length_costs_the_same_to_compile() -> None:
    """A pattern of a thousand characters took minutes of a core, and grew with them."""
    schemas = [schema_for_xgrammar({"type": "string", "maxLength": number}) for number in (200, 8000, 10**40)]
    sizes = [_COMPILER.compile_grammar(json_grammar(json.dumps(one))).memory_size_bytes for one in schemas]
    assert max(sizes) < 1.1 * min(sizes)


_CHILD = """
import multiprocessing

def compiles():
    import json, xgrammar
    tokens = [bytes([byte]) for byte in range(1, 256)] + [b"<end>"]
    compiler = xgrammar.GrammarCompiler(xgrammar.TokenizerInfo(tokens, stop_token_ids=[255]))
    schema = {"type": "array", "items": {"type": "integer"}}
    tag = {"type": "tag", "begin": "<a>", "content": {"type": "json_schema", "json_schema": schema}, "end": "</a>"}
    item = xgrammar.StructuralTagItem(begin="<a>", schema=json.dumps(schema), end="</a>")
    asked = [(json.dumps({"type": "structural_tag", "format": tag}),), ([item], ["<a>"])]
    blanks = [xgrammar.GrammarMatcher(compiler.compile_structural_tag(*one)).accept_string("<a>[1 ,2") for one in asked]
    plain = [xgrammar.GrammarMatcher(compiler.compile_structural_tag(*one)).accept_string("<a>[1, 2") for one in asked]
    bound = compiler.compile_json_schema(json.dumps({"type": "string", "maxLength": 3}), any_whitespace=False)
    texts = ['"a b"', '"a\\tb"']
    print(blanks, plain, [xgrammar.GrammarMatcher(bound).accept_string(one) for one in texts], flush=True)

if __name__ == "__main__":
    process = multiprocessing.get_context("spawn").Process(target=compiles)
    process.start()
    process.join()
"""


@pytest.mark.parametrize("value", ["1", None])
def test_the_server_s_children_compile_so(tmp_path: Any, value: str | None) -> None:
    """vLLM's engine, which compiles, is a process of its own; it imports the server's program first."""
    (tmp_path / "compiling.py").write_text(_CHILD.replace("target=compiles", "target=__import__('compiling').compiles"))
    environment = {name: one for name, one in os.environ.items() if name != VARIABLE}
    if value is not None:
        environment[VARIABLE] = value
    environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    command = [sys.executable, "-m", "qserve.engines.vllm.launch.plugins.server_process", "compiling"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    has_blanks = value is None
    assert done.stdout.strip() == f"{[has_blanks] * 2} [True, True] [True, False]", (
        "in the form of today and in the older one"
    )
