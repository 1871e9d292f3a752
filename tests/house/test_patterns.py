"""Every regular expression of ours takes time by the length of a text and not by its square: clients and models write
the texts, event loops read them, and Python's `re` holds the interpreter while it searches."""

from __future__ import annotations

import ast
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import pytest

from tests.house.hostile_texts import hostile_texts
from tests.house.sources import PACKAGE, tree_of

LENGTH = 30_000
# Of this process. Such a text takes a few milliseconds; where its square counts, seconds and more.
LIMIT_S = 0.7
FROM_THE_BEGIN = {"match", "fullmatch"}
FUNCTIONS = {"compile", "search", "match", "fullmatch", "split", "findall", "finditer", "sub", "subn"}
FLAGS_AT = {"compile": 1, "search": 2, "match": 2, "fullmatch": 2, "split": 3, "findall": 2, "finditer": 2, "sub": 4}

SLOW = {
    "cli/runs/command.py: _AGE": "an age that the user writes",
    "cli/command_line.py: _SECRET": "the user's own command",
    "cli/usage_errors.py: _CHOICE": "click's sentence about the user's own command",
    "engines/transformers/kernels/compiler_errors.py: _CARET": "one line of a compiler's",
    "engines/transformers/kernels/compiler_errors.py: _NAMED": "one line of a compiler's",
    "engines/transformers/kernels/compiler_errors.py: _REPR": "one line of a compiler's",
    "grammar/endless_rules.py: _OF_EBNF": "asked at one place; where it finds nothing the reading ends",
    "planner/speed/terms/engine_costs.py: search": "a release's number",
}
"""What may take longer, and who writes the text."""
MADE = {
    "core/quantization/marks.py",
    "core/quantization/module_names.py",
    "core/tensors.py",
    "prompts/special_tokens.py",
    "engines/vllm/launch/reasons/rule.py",
    "gateway/web/routes.py",
    "hub/named.py",
    "planner/memory/weights.py",
    "reward/checkpoints/heads.py",
    "reward/rules/rules.py",
    "wire/body_scan.py",
    "grammar/escaped_lark.py",
}
"""Modules that make patterns while they run: of names, and an operator's (the tests of their own hold these)."""


class Used(NamedTuple):
    """A pattern. `name` is of its module and itself, or of what is called; `ways` are the functions it is used by."""

    name: str
    pattern: str
    flags: int
    ways: frozenset[str]


def _all() -> Iterator[Used]:
    for file in sorted(PACKAGE.rglob("*.py")):
        tree, module = tree_of(file), file.relative_to(PACKAGE).as_posix()
        scope = {"re": re} | {
            name: node.value.value
            for node in tree.body
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
            if (name := getattr(node.targets[0], "id", None))
        }
        names = {id(node.value): node.targets[0].id for node in tree.body if _names_one(node)}
        for call in ast.walk(tree):
            if not (isinstance(call, ast.Call) and _is_of_re(call.func)):
                continue
            way = call.func.attr
            name = names.get(id(call))
            try:
                pattern = _value(call.args[0], scope)
                flags = [one.value for one in call.keywords if one.arg == "flags"] + call.args[FLAGS_AT[way] :][:1]
                flags = int(_value(flags[0], scope)) if flags else 0
            except NameError:
                assert module in MADE, f"{module}, line {call.lineno}: a pattern that is made while the program runs"
                continue
            text = pattern.decode("latin-1") if isinstance(pattern, bytes) else pattern
            flags |= re.ASCII if isinstance(pattern, bytes) else 0
            yield Used(f"{module}: {name or way}", text, flags, _ways(tree, name) if name else frozenset({way}))


def _is_of_re(function: ast.expr) -> bool:
    of = isinstance(function, ast.Attribute) and function.attr in FUNCTIONS and function.value
    return isinstance(of, ast.Name) and of.id == "re"


def _names_one(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and isinstance(node.value, ast.Call)


def _ways(tree: ast.Module, name: str) -> frozenset[str]:
    """The functions of a named pattern; empty where it is handed on."""
    found = [node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and _is(node.value, name)]
    uses = sum(_is(node, name) and isinstance(node.ctx, ast.Load) for node in ast.walk(tree))
    return frozenset(found) if len(found) == uses else frozenset()


def _is(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _value(node: ast.expr, scope: dict[str, Any]) -> Any:
    return eval(compile(ast.Expression(node), "pattern", "eval"), dict(scope))


@contextmanager
def _limit() -> Iterator[None]:
    def end(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGVTALRM, end)
    signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def _slow_on(used: Used) -> str | None:
    """A text that it takes long for."""
    compiled = re.compile(used.pattern, used.flags)
    for text in dict.fromkeys(hostile_texts(used.pattern, used.flags, LENGTH)):
        try:
            with _limit():
                if used.ways and used.ways <= FROM_THE_BEGIN:
                    for way in used.ways:
                        getattr(compiled, way)(text)
                else:
                    for _ in compiled.finditer(text):
                        pass
        except TimeoutError:
            return text
    return None


@cache
def _patterns() -> tuple[Used, ...]:
    return tuple(_all())  # not while tests are collected: it reads all sources


def test_the_search_finds_the_patterns() -> None:
    names = {one.name for one in _patterns()}
    assert len(_patterns()) > 140
    assert names > {"gateway/auth.py: _HOST", "units.py: fullmatch", "reward/protocols/chatml.py: _TURN", *SLOW}


def test_no_pattern_takes_time_by_the_square_of_a_text() -> None:
    slow = [
        (one.name, one.pattern, text[:20])
        for one in _patterns()
        if one.name not in SLOW and (text := _slow_on(one)) is not None
    ]
    assert not slow


@pytest.mark.parametrize("pattern", [r"^\W*score", r"(a+)+$", r"\{\s*\d*\s*\}"])
def test_a_pattern_of_squares_is_told(pattern: str) -> None:
    assert _slow_on(Used("", pattern, re.MULTILINE, frozenset())) is not None
