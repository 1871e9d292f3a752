"""Code with its keywords, strings and comments marked by class, for the stylesheet to colour."""

from __future__ import annotations

from functools import lru_cache
from html import escape
from typing import Any

from pygments.lexers import get_lexer_by_name
from pygments.token import Comment, Keyword, Name, Number, String
from pygments.util import ClassNotFound

__all__ = ["highlighted"]

_MOST_CHARS = 30_000
_CLASSES = (
    (Comment, "c"),
    (String, "s"),
    (Number, "m"),
    (Keyword, "k"),
    (Name.Function, "f"),
    (Name.Class, "f"),
    (Name.Decorator, "f"),
    (Name.Tag, "k"),
    (Name.Builtin, "k"),
)


@lru_cache(maxsize=256)
def highlighted(code: str, language: str) -> str:
    """HTML of `code`; plain where the language is unknown or the code is long."""
    if not language or len(code) > _MOST_CHARS:
        return escape(code)
    try:
        lexer = get_lexer_by_name(language, stripnl=False, ensurenl=False)
    except ClassNotFound:
        return escape(code)
    return "".join(_marked(kind, text) for kind, text in lexer.get_tokens(code))


def _marked(kind: Any, text: str) -> str:
    for parent, name in _CLASSES:
        if kind in parent:
            return f'<span class="qs-{name}">{escape(text)}</span>'
    return escape(text)
