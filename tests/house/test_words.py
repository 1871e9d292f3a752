"""Names are the field's words: none of the code's own inventions comes back (docs/glossary.md has the words)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.house.sources import PACKAGE, tree_of

INSTEAD = {
    "account": "memory, terms",
    "asked": "the thing itself: request, job, options",
    "borders": "cu_seqlens, spans",
    "brake": "throttle",
    "deadly": "poison",
    "door": "port, gateway",
    "doors": "ports",
    "lay": "place",
    "lays": "places",
    "make_way": "preempt",
    "pain": "cost, kind",
    "settle": "what is done: resolve, repack, finish",
    "stretches": "segments",
    "surroundings": "environment",
    "wish": "request, options",
}
INVENTED = re.compile(rf"(?<=_)(?:{'|'.join(INSTEAD)})(?=_)")
ANYWHERE = re.compile(rf"(?<![a-z])(?:{'|'.join(INSTEAD)})(?![a-z])")
INNER_CAPITAL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
# Of these only a class of that name is refused.
CLASSES_ONLY = {"asked"}


def words_of(name: str) -> str:
    """`_makeWay` and `MakeWay` as `make_way`, between underscores."""
    return f"_{INNER_CAPITAL.sub('_', name).strip('_').lower()}_"


def names_of(tree: ast.AST) -> Iterator[tuple[str, int, bool]]:
    """(name, line, whether it is a class) of all that a file defines or assigns."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node.lineno, isinstance(node, ast.ClassDef)
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno, False
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.id if isinstance(node, ast.Name) else node.attr, node.lineno, False


def test_no_invented_word_is_a_name() -> None:
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        if not ANYWHERE.search(INNER_CAPITAL.sub("_", path.read_text()).lower()) and not ANYWHERE.search(path.stem):
            continue  # to be quick
        names = [(path.stem, 0, True), *names_of(tree_of(path))]
        found += [
            f"{path.relative_to(PACKAGE)}:{line} {name}: say {INSTEAD[word]}"
            for name, line, is_class in names
            for word in INVENTED.findall(words_of(name))
            if is_class or word not in CLASSES_ONLY
        ]
    assert found == []


def test_no_invented_word_is_in_a_sentence() -> None:
    """Of the code and its tests: these say nothing to a reader who has not met them before."""
    charming = re.compile(r"\b(?:quarrel|(?:front|own) doors?|the door of|just die of|starts the pauses anew)\b", re.I)
    sources = [*PACKAGE.rglob("*.py"), *(PACKAGE.parent / "docs").rglob("*.md")]
    found = [f"{path}: {match[0]}" for path in sources for match in charming.finditer(path.read_text())]
    assert found == []
