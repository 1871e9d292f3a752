"""Has xgrammar write the JSON inside structural tags as `json.dumps` does, with no other blanks.

vLLM's `disable_any_whitespace` holds for an answer that is JSON as a whole. What is a part of a structural tag, the
arguments of a call or an answer behind a thought, may have blanks between any two of its tokens (vLLM 0.32, xgrammar
0.2.8), which small models write until their limit; the least that a tag can ask for is one blank at each place. So a
schema becomes the grammar that xgrammar itself makes of it without blanks, before the tag is compiled.

The class is changed when vLLM imports it: xgrammar comes with the first structured request, in one of its processes.
"""

from __future__ import annotations

import json
from functools import lru_cache
from types import ModuleType
from typing import Any

from qserve.engines.vllm.launch.plugins.on_import import when_imported

__all__ = ["VARIABLE", "without_blanks", "write_no_blanks"]

VARIABLE = "QSERVE_TAGS_WITHOUT_BLANKS"
"""In the environment of a server that is told `disable_any_whitespace`."""

_MODULE = "xgrammar.compiler"


def write_no_blanks() -> None:
    """From the next import of xgrammar on."""
    when_imported(_MODULE, _change)


def _change(module: ModuleType) -> None:
    compile_tag = module.GrammarCompiler.compile_structural_tag

    def compile_structural_tag(self: Any, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 2:  # the older form, of tags and triggers, as xgrammar itself reads it
            from xgrammar import StructuralTag

            args = (StructuralTag.from_legacy_structural_tag(*args).model_dump_json(),)
        if len(args) == 1 and isinstance(args[0], str):
            args = (without_blanks(args[0]),)
        return compile_tag(self, *args, **kwargs)

    module.GrammarCompiler.compile_structural_tag = compile_structural_tag


# The tools of an agent come with each of its requests.
@lru_cache(maxsize=16)
def without_blanks(tag: str) -> str:
    """The structural tag with grammars in place of its schemas; as it is where xgrammar can't read one."""
    return json.dumps(_changed(json.loads(tag)))


def _changed(part: Any) -> Any:
    if isinstance(part, list):
        return [_changed(one) for one in part]
    if not isinstance(part, dict):
        return part
    if part.get("type") != "json_schema":
        return {name: _changed(value) for name, value in part.items()}
    if part.get("style", "json") != "json":  # parameters between tags, whose text may have any blanks
        return part
    if part.get("any_order") or part.get("excludes"):  # no grammar that can be had of a schema alone
        return {**part, "max_whitespace_cnt": 1}
    return _grammar(part) or part


def _grammar(part: dict[str, Any]) -> dict[str, Any] | None:
    from xgrammar import Grammar

    try:
        grammar = Grammar.from_json_schema(json.dumps(part["json_schema"]), any_whitespace=False)
    except Exception:  # compiling the tag says what is wrong
        return None
    return {"type": "grammar", "grammar": str(grammar)}
