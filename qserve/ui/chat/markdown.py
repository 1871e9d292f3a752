"""Markdown as HTML that can show text and do nothing else.

The page must not trust what a model writes. HTML in it is shown as text (a line break and three plain inline elements
excepted), links open in a new tab, images of other servers become links, and a formula is one only where its delimiters
say so beyond doubt. The result goes through the browser's own Markdown renderer once more, so every block is one line:
a line that begins with a block element is passed on as it is, and its text holds no `<`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from html import escape
from typing import Any
from urllib.parse import urlsplit

from markdown_it import MarkdownIt
from markdown_it.token import Token
from mdit_py_plugins.dollarmath import dollarmath_plugin

from qserve.ui.chat.highlight import highlighted
from qserve.ui.chat.markdown_rules import bracket_math, cjk_emphasis, plain_tags

__all__ = ["MATH_DELIMITERS", "GrowingMarkdown", "blocks_of", "one_line"]

_INLINE, _INLINE_END, _DISPLAY, _DISPLAY_END = "\ue000", "\ue001", "\ue002", "\ue003"
MATH_DELIMITERS = (
    {"left": _DISPLAY, "right": _DISPLAY_END, "display": True},
    {"left": _INLINE, "right": _INLINE_END, "display": False},
)
"""Where the browser sets formulas: private characters, taken out of every text before."""

_PRIVATE = dict.fromkeys(map(ord, (_INLINE, _INLINE_END, _DISPLAY, _DISPLAY_END)))
_MOST_CHARS = 200_000
# Each looks for its end in the rest of its paragraph: thousands of them take seconds.
_MOST_BRACKETS = 3000
_MOST_NESTED = 60
# Gradio keeps the places of formulas by this name while it parses; a text that holds it would lose it.
_GRADIO_MARK = "%%%LATEX_BLOCK_"
_DIRECTED = frozenset({"paragraph_open", "heading_open", "bullet_list_open", "ordered_list_open", "th_open", "td_open"})
_LANGUAGE = re.compile(r"[\w+#.-]{1,32}")


class GrowingMarkdown:
    """Blocks of a text that grows at its end: all but the last are parsed and rendered once."""

    def __init__(self) -> None:
        self._finished_text = ""
        self._finished: tuple[str, ...] = ()
        self._environment: dict[str, Any] = {}

    def blocks_of(self, text: str) -> tuple[str, ...]:
        """As the function of this name, for a text that is still being written."""
        text = _normalized(text)
        if not text.startswith(self._finished_text):
            self._finished_text, self._finished, self._environment = "", (), {}
        rest = text[len(self._finished_text) :]
        groups = _groups(rest, self._environment)
        if groups is None:
            return (*self._finished, _plain(rest))
        *finished, last = [_rendered(one, self._environment, one is not groups[-1]) for one in groups] or [""]
        if finished:
            self._finished = (*self._finished, *finished)
            self._finished_text = text[: len(text) - len(rest) + _offset(rest, groups[-1])]
        return (*self._finished, last)


@lru_cache(maxsize=512)
def blocks_of(text: str) -> tuple[str, ...]:
    """A whole text as blocks of HTML, one line each."""
    environment: dict[str, Any] = {}
    text = _normalized(text)
    groups = _groups(text, environment)
    return (_plain(text),) if groups is None else tuple(_rendered(one, environment, True) for one in groups)


def _normalized(text: str) -> str:
    return text.translate(_PRIVATE).replace("\r\n", "\n").replace("\r", "\n")


def _groups(text: str, environment: dict[str, Any]) -> list[list[Token]] | None:
    """Tokens of each top-level block; None for what is shown as plain text: too long, or nested too deep."""
    if len(text) > _MOST_CHARS or any(part.count("[") > _MOST_BRACKETS for part in text.split("\n\n")):
        return None
    tokens = _PARSER.parse(text, environment)
    if any(token.level >= _MOST_NESTED for token in tokens):
        return None
    groups: list[list[Token]] = []
    for token in tokens:
        if token.level == 0 and token.nesting >= 0:
            groups.append([])
        groups[-1].append(token)
    return groups


def _rendered(tokens: Sequence[Token], environment: dict[str, Any], is_whole: bool) -> str:
    """One block. `is_whole`: nothing will be added to it, so that colouring its code is worth it."""
    in_lists = 0
    for token in tokens:
        in_lists += token.nesting * token.type.endswith(("_list_open", "_list_close"))
        # A list has one direction: the browser finds it in its text, where that has none of its own.
        if token.type in _DIRECTED and in_lists <= ("list" in token.type):
            token.attrSet("dir", "auto")
        token.meta["is_whole"] = is_whole
    html = _PARSER.renderer.render(tokens, _PARSER.options, environment).strip()
    return f"<div>{one_line(html)}</div>"


def _plain(text: str) -> str:
    return f'<div class="qs-plain" dir="auto">{one_line(escape(text))}</div>'


def one_line(html: str) -> str:
    """The same HTML without line breaks: an empty line would end it for the browser's Markdown parser."""
    return html.replace("\n", "&#10;").replace(_GRADIO_MARK, _GRADIO_MARK.replace("_", "&#95;"))


def _offset(text: str, group: Sequence[Token]) -> int:
    """Characters before the block."""
    first_line = (group[0].map or [0])[0]
    position = 0
    for _ in range(first_line):
        position = text.index("\n", position) + 1
    return position


# How tokens become HTML


def _code(self: Any, tokens: Sequence[Token], index: int, _options: Any, _environment: Any) -> str:
    token = tokens[index]
    found = _LANGUAGE.match(token.info.strip())
    language = found[0] if found else ""
    inside = highlighted(token.content, language) if token.meta.get("is_whole") else escape(token.content)
    return (
        f'<div class="qs-code" dir="ltr"><button type="button" class="qs-copy-code" data-language="{escape(language)}">'
        f"</button><pre><code>{inside}</code></pre></div>"
    )


def _image(self: Any, tokens: Sequence[Token], index: int, options: Any, environment: Any) -> str:
    """A picture that the text itself holds is shown; any other is a link, since fetching it tells its server."""
    source = str(tokens[index].attrs.get("src") or "")
    alternative = self.renderInlineAsText(tokens[index].children or [], options, environment)
    if source.startswith("data:image/"):
        return f'<img src="{escape(source)}" alt="{escape(alternative)}">'
    try:
        host = urlsplit(source).hostname or "…"
    except ValueError:
        host = "…"
    label = f"{alternative} ({host})" if alternative else host
    return (
        f'<a class="qs-image" href="{escape(source)}" target="_blank" rel="noopener noreferrer nofollow">'
        f"{escape(label)} ↗</a>"
    )


def _link(self: Any, tokens: Sequence[Token], index: int, options: Any, environment: Any) -> str:
    tokens[index].attrSet("target", "_blank")
    tokens[index].attrSet("rel", "noopener noreferrer nofollow")
    return str(self.renderToken(tokens, index, options, environment))


def _formula(is_display: bool) -> Any:
    left, right = (_DISPLAY, _DISPLAY_END) if is_display else (_INLINE, _INLINE_END)

    def rule(self: Any, tokens: Sequence[Token], index: int, _options: Any, _environment: Any) -> str:
        kind = "qs-formula qs-display" if is_display else "qs-formula"
        return f'<span class="{kind}" dir="ltr">{left}{escape(tokens[index].content.strip())}{right}</span>'

    return rule


def _parser() -> MarkdownIt:
    parser = MarkdownIt(
        "commonmark", {"html": False, "linkify": True, "breaks": True, "maxNesting": _MOST_NESTED + 20}
    ).enable(["table", "strikethrough", "linkify"])
    parser.use(
        dollarmath_plugin,
        allow_labels=False,
        allow_space=False,
        allow_digits=False,
        allow_blank_lines=False,
        double_inline=True,
    )
    parser.use(bracket_math).use(plain_tags).use(cjk_emphasis)
    for name, is_display in (("math_inline", False), ("math_inline_double", True), ("math_block", True)):
        parser.add_render_rule(name, _formula(is_display))
    for name, rule in (("fence", _code), ("code_block", _code), ("image", _image), ("link_open", _link)):
        parser.add_render_rule(name, rule)
    wide = '<div class="qs-wide" tabindex="0"><table>'
    parser.add_render_rule("table_open", lambda *_: wide)
    parser.add_render_rule("table_close", lambda *_: "</table></div>")
    return parser


_PARSER = _parser()
