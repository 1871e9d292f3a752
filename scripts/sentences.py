"""Every sentence that qserve can print, by module, to be read in one go.

    python scripts/sentences.py [FOLDER OF qserve]

Found are strings of three words and more: what is raised, printed, logged, noted, and helps of options and commands.
Values within a sentence are {}. Docstrings of what is no command, patterns, SQL and markup are left out.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

__all__ = ["sentences_of"]

_PACKAGE = Path(__file__).parent.parent / "qserve"
_WORD = re.compile(r"(?:^|(?<=\s))[\"'(`]?[^\W\d_]{2,}")
_FEWEST_WORDS = 3
_CHINESE = re.compile(r"[一-鿿]{4}")
_CODE = re.compile(
    r"\s*(?:<|#include|(?:BEGIN|SELECT|INSERT|CREATE|UPDATE|DELETE|ALTER|WITH|PRAGMA|FROM|WHERE|ORDER|CASE)\b)"
)


def sentences_of(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and text of each."""
    skipped = {id(node) for node in _left_out(tree)}
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if id(node) in skipped:
            continue
        text = _text(node)
        if text is None:
            waiting.extend(reversed(list(ast.iter_child_nodes(node))))
        elif _is_sentence(text):
            yield node.lineno, " ".join(text.split())  # type: ignore[attr-defined]


def _is_sentence(text: str) -> bool:
    is_long = len(_WORD.findall(text)) >= _FEWEST_WORDS or _CHINESE.search(text) is not None
    return is_long and not _CODE.match(text)


def _left_out(tree: ast.Module) -> Iterator[ast.AST]:
    """Docstrings but those of commands, which are their help, and patterns."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            is_help = any(
                "command" in ast.unparse(one) or "group" in ast.unparse(one)
                for one in getattr(node, "decorator_list", ())
            )
            yield from (one for one in node.body if _is_docstring(one) and not (is_help and one is node.body[0]))
        elif isinstance(node, ast.Call) and _is_of_re(node.func):
            yield node


def _is_of_re(function: ast.expr) -> bool:
    return isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) and function.value.id == "re"


def _is_docstring(node: ast.stmt) -> bool:
    """Or what stands below a constant to say what it is."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _text(node: ast.AST) -> str | None:
    """Of a string; None of anything else."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(one.value if isinstance(one, ast.Constant) else "{}" for one in node.values)  # type: ignore[misc]
    return None


def main() -> None:
    package = Path(sys.argv[1]) if len(sys.argv) > 1 else _PACKAGE
    for path in sorted(package.rglob("*.py")):
        found = list(sentences_of(ast.parse(path.read_text())))
        if found:
            print(f"\n{path.relative_to(package.parent)}")
            print("\n".join(f"{line:5}  {text}" for line, text in found))


if __name__ == "__main__":
    main()
