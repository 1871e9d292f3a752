"""What a grammar takes as a text, its rewritten form takes as that text inside a JSON string, and nothing else."""

from __future__ import annotations

import json
import re
from random import Random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from qserve.grammar.escaped_lark import NotEscapable, escaped_lark
from qserve.grammar.tool_calls import tool_call_grammar
from qserve.hub.chat_template import ToolFormat
from qserve.wire.errors import ApiError
from qserve.wire.tools import Tool
from tests.unit.grammar.drawing import TOKENIZER, drawn, ready

PATCH = r"""start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?
hunk: add_hunk | delete_hunk | update_hunk // as Codex 0.171 sends it, in short
add_hunk: "*** Add File: " filename LF add_line+
delete_hunk: "*** Delete File: " filename LF
update_hunk: "*** Update File: " filename LF change_move? change?
filename: /(.+)/
add_line: "+" /(.*)/ LF -> line
change_move: "*** Move to: " filename LF
change: (change_context | change_line)+ eof_line?
change_context: ("@@" | "@@ " /(.+)/) LF
change_line: ("+" | "-" | " ") /(.*)/ LF
eof_line: "*** End of File" LF
%import common.LF
"""
PATCHES = re.compile(
    r"\*\*\* Begin Patch\n(\*\*\* (Add File: .+\n(\+.*\n)+|Delete File: .+\n|Update File: .+\n(\*\*\* Move to: .+\n)?"
    r"(((@@|@@ .+)\n|[-+ ].*\n)+(\*\*\* End of File\n)?)?))+\*\*\* End Patch\n?"
)
# Each with what the library's lexer could take for more of the one before it.
EXPRESSIONS = (
    r"[a-c\"]+\n",
    r"(.*)\n",
    r"x\\?y",
    r'"[^"]*"',
    r"(a|b\t)*",
    r"[^\n\\]{1,3}",
    r"é|ü+",
    r"\d+(,\d{3})*",
    r"(ab|)c",
    r"/\*.*\*/",
    r"[\]\-x]*",
    r"a.c",
    r"\x41\u0042*",
    r"(?:q|\\){2,}",
    r"z*?",
    r"[\s\w]+",
)
TEXTS = st.text(st.sampled_from('abc"\\\n\t,xyzéü0123/*]-AB q'), max_size=8)


def takes(grammar: str, text: str) -> bool:
    matcher = ready(grammar).deep_copy()
    ids = TOKENIZER.encode(text, add_special_tokens=False).ids
    return bool(matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting())


def in_json(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


@given(st.sampled_from(EXPRESSIONS), TEXTS)
@example(r"(.*)\n", 'a "b" \\ c\n')
@settings(max_examples=300, deadline=None)
def test_an_expression(pattern: str, text: str) -> None:
    escaped = escaped_lark(f'start: "<" /{pattern.replace("/", chr(92) + "/")}/ ">"')
    assert takes(escaped, in_json(f"<{text}>")) == (re.fullmatch(pattern, text) is not None)


@given(TEXTS, TEXTS, st.booleans())
@settings(max_examples=100, deadline=None)
def test_literals(one: str, other: str, any_case: bool) -> None:
    flag = "i" if any_case else ""
    written = json.dumps(one, ensure_ascii=False)
    escaped = escaped_lark(f'start: "<" A ">"\nA: {written}{flag} | "!" "a".."c"')
    same = one.lower() == other.lower() if any_case else one == other
    assert takes(escaped, in_json(f"<{other}>")) == (same or other in ("!a", "!b", "!c"))


def test_any_case_of_a_set() -> None:
    escaped = escaped_lark('start: "<" /[a-c\\n]+/i ">"')
    assert takes(escaped, "<AbC\\n>") and not takes(escaped, "<\\N>") and not takes(escaped, "<x>")


@pytest.mark.parametrize(
    "grammar",
    [
        r'start: ~"a"',
        r"start: A & B",
        "start: <|im_end|>",
        'start: %json {"type": "string"}',
        "start: /^a/",
        r"start: /\ba/",
        "start: /(?i)a/",
        "start: /[a[b]]/",
        'start[suffix="x"]: /.*/',
        "%ignore WS\nstart: WS",
        "%import common.NONE\nstart: /a/",
        r'start: "\q"',
        "start: /a b/x",
        r"start: /\p{L}/",
    ],
)
def test_what_it_cannot_say_is_refused_by_name(grammar: str) -> None:
    with pytest.raises(NotEscapable) as caught:
        escaped_lark(grammar)
    assert "'" in str(caught.value) or '"' in str(caught.value)


def tool(**function: Any) -> Tool:
    schema = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
    return Tool.model_validate(
        {"type": "function", "function": {"name": "apply_patch", "parameters": schema, **function}}
    )


@pytest.mark.parametrize("written", ["hermes", "qwen3_coder"])
def test_a_call_holds_a_text_of_its_grammar_in_either_format(written: ToolFormat) -> None:
    bounded = PATCH.replace("/(.+)/", "/.{1,6}/").replace("/(.*)/", "/.{0,6}/").replace("hunk+", "hunk hunk?")
    bounded = bounded.replace("(change_context | change_line)+", "(change_context | change_line){1,3}")
    bounded = bounded.replace("add_line+", "add_line{1,3}")
    spec = tool_call_grammar([tool()], None, written, is_parallel=False, larks={"apply_patch": bounded})
    rng = Random(7)
    for _ in range(20):
        call = drawn(spec.grammar, rng)
        if written == "hermes":
            text = json.loads(call.strip().removesuffix("</tool_call>"))["arguments"]["input"]
        else:
            text = call.partition("<parameter=input>\n")[2].partition("\n</parameter>\n</function>")[0]
        assert PATCHES.fullmatch(text), text


@pytest.mark.parametrize("lark", ["start: start", 'start: ~"a"'])
def test_a_grammar_that_no_call_can_follow_is_a_400(lark: str) -> None:
    with pytest.raises(ApiError, match="the grammar of 'apply_patch'") as caught:
        tool_call_grammar([tool()], "required", "hermes", is_parallel=False, larks={"apply_patch": lark})
    assert (caught.value.status, caught.value.code) == (400, "invalid_grammar")
