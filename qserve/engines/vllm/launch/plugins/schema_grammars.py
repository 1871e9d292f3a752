"""Has xgrammar write the JSON of schemas as `json.dumps` does: no other blanks, no control characters in strings.

vLLM's `disable_any_whitespace` holds for an answer that is JSON as a whole. What is a part of a structural tag, the
arguments of a call or an answer behind a thought, may have blanks between any two of its tokens (vLLM 0.32, xgrammar
0.2.8), which small models write until their limit; the least that a tag can ask for is one blank at each place.

A string whose length is bound may have control characters (xgrammar 0.2.8), which JSON has not. A pattern keeps them
out, but compiling one takes minutes for a thousand characters, where the bound takes the same two seconds for any.

So a schema becomes the text of the grammar that xgrammar itself makes of it, with another class of characters and
without blanks, before it is compiled. The class of the compiler is changed when vLLM imports it: xgrammar comes with
the first structured request, in one of its processes.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from types import ModuleType
from typing import Any

from qserve.engines.vllm.launch.plugins.on_import import when_imported

__all__ = ["VARIABLE", "json_grammar", "tag_with_grammars", "write_valid_json"]

VARIABLE = "QSERVE_TAGS_WITHOUT_BLANKS"
"""In the environment of a server that is told `disable_any_whitespace`."""

_MODULE = "xgrammar.compiler"
_BOUND_CHARACTERS, _JSON_CHARACTERS = r"[^\"\\\r\n]", r"[^\0-\u001f\"\\]"
# It writes ß as \xdf, and reads \xdfe as one character.
_BYTES = re.compile(r"\\(?:x([0-9a-f]{2})|.)")
_LENGTHS = ('"minLength"', '"maxLength"')


def write_valid_json(*, blanks: bool) -> None:
    """From the next import of xgrammar on; `blanks`: JSON in structural tags may have any."""
    when_imported(_MODULE, lambda module: _change(module, blanks=blanks))


def _change(module: ModuleType, *, blanks: bool) -> None:
    compile_schema = module.GrammarCompiler.compile_json_schema
    compile_tag = module.GrammarCompiler.compile_structural_tag

    def compile_json_schema(self: Any, schema: Any, **options: Any) -> Any:
        if isinstance(schema, str) and any(name in schema for name in _LENGTHS):
            return self.compile_grammar(json_grammar(schema, **options))
        return compile_schema(self, schema, **options)

    def compile_structural_tag(self: Any, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 2:  # the older form, of tags and triggers, as xgrammar itself reads it
            from xgrammar import StructuralTag

            args = (StructuralTag.from_legacy_structural_tag(*args).model_dump_json(),)
        if len(args) == 1 and isinstance(args[0], str):
            args = (tag_with_grammars(args[0], blanks=blanks),)
        return compile_tag(self, *args, **kwargs)

    module.GrammarCompiler.compile_json_schema = compile_json_schema
    module.GrammarCompiler.compile_structural_tag = compile_structural_tag


# The schemas of an agent come with each of its requests.
@lru_cache(maxsize=16)
def json_grammar(schema: str, **options: Any) -> str:
    """The grammar that xgrammar makes of a schema with these options, but for the characters of bound strings."""
    from xgrammar import Grammar

    grammar = str(Grammar.from_json_schema(schema, **options))
    return _BYTES.sub(_of_four_digits, grammar).replace(_BOUND_CHARACTERS, _JSON_CHARACTERS)


def _of_four_digits(found: re.Match[str]) -> str:
    return f"\\u00{found[1]}" if found[1] else found[0]


@lru_cache(maxsize=16)
def tag_with_grammars(tag: str, *, blanks: bool) -> str:
    """The structural tag with grammars in place of its schemas; as it is where xgrammar can't read one."""
    return json.dumps(_changed(json.loads(tag), blanks))


def _changed(part: Any, blanks: bool) -> Any:
    if isinstance(part, list):
        return [_changed(one, blanks) for one in part]
    if not isinstance(part, dict):
        return part
    if part.get("type") != "json_schema":
        return {name: _changed(value, blanks) for name, value in part.items()}
    if part.get("style", "json") != "json":  # parameters between tags, whose text may have any blanks and characters
        return part
    if part.get("any_order") or part.get("excludes"):  # no grammar that can be had of a schema alone
        return part if blanks else {**part, "max_whitespace_cnt": 1}
    try:
        grammar = json_grammar(json.dumps(part["json_schema"]), any_whitespace=blanks)
    except Exception:  # compiling the tag says what is wrong
        return part
    return {"type": "grammar", "grammar": grammar}
