r"""Rules beyond CommonMark's: formulas in \(…\) and \[…\], HTML elements that only style text, emphasis in Chinese."""

from __future__ import annotations

import re

from markdown_it import MarkdownIt
from markdown_it.rules_block import StateBlock
from markdown_it.rules_inline import StateInline, emphasis

__all__ = ["bracket_math", "cjk_emphasis", "plain_tags"]

_BREAK = re.compile(r"<br ?/?>", re.IGNORECASE)
_ELEMENT = re.compile(r"<(sub|sup|kbd)>([^<>\n]{1,200})</\1>", re.IGNORECASE)
# Punctuation, kana, ideographs, Hangul, full-width forms.
_CJK = re.compile("[\u3000-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff]")
_MOST_LINES = 64
_INLINE = {"\\(": ("\\)", "math_inline"), "\\[": ("\\]", "math_inline_double")}


def bracket_math(parser: MarkdownIt) -> None:
    """Tokens as `dollarmath` makes them: math_inline, math_inline_double, math_block."""
    parser.inline.ruler.before("escape", "bracket_math", _inline_math)
    parser.block.ruler.before("fence", "bracket_math", _block_math, {"alt": ["paragraph", "blockquote"]})


def plain_tags(parser: MarkdownIt) -> None:
    """<br>, <sub>…</sub>, <sup>…</sup> and <kbd>…</kbd>, without attributes. Models write them in tables and units."""
    parser.inline.ruler.before("autolink", "plain_tags", _plain_tag)


def cjk_emphasis(parser: MarkdownIt) -> None:
    """`**结论：**这是` is bold: CommonMark wants a space beside a `*` at punctuation, which Chinese does not write."""
    parser.inline.ruler.at("emphasis", _emphasis)


def _emphasis(state: StateInline, silent: bool) -> bool:
    start, num_before = state.pos, len(state.delimiters)
    if not emphasis.tokenize(state, silent):
        return False
    before = state.src[start - 1] if start else " "
    after = state.src[state.pos] if state.pos < state.posMax else " "
    if state.src[start] == "*" and not before.isspace() and not after.isspace():
        for delimiter in state.delimiters[num_before:]:
            delimiter.open = delimiter.open or bool(_CJK.match(before))
            delimiter.close = delimiter.close or bool(_CJK.match(after))
    return True


def _inline_math(state: StateInline, silent: bool) -> bool:
    closing, name = _INLINE.get(state.src[state.pos : state.pos + 2], ("", ""))
    if not closing:
        return False
    # Each text is searched at most once for an end that it lacks.
    missing = state.env.setdefault("missing", {})
    if missing.get(closing) == state.src:
        return False
    end = state.src.find(closing, state.pos + 2, state.posMax)
    if end < 0:
        missing[closing] = state.src
        return False
    content = state.src[state.pos + 2 : end]
    if not content.strip():
        return False
    if not silent:
        state.push(name, "math", 0).content = content
    state.pos = end + 2
    return True


def _block_math(state: StateBlock, first: int, last: int, silent: bool) -> bool:
    r"""From a line that begins with \[ to one that ends with \], without an empty line between."""
    if state.is_code_block(first) or not _line(state, first).startswith("\\["):
        return False
    for line in range(first, min(last, first + _MOST_LINES)):
        text = _line(state, line)
        if not text or (line > first and state.sCount[line] < state.blkIndent):
            return False
        if text.endswith("\\]") and (line > first or len(text) > 4):
            break
    else:
        return False
    if not silent:
        content = state.getLines(first, line + 1, state.blkIndent, False).strip()
        token = state.push("math_block", "math", 0)
        token.block, token.map, token.content = True, [first, line + 1], content[2:-2]
        state.line = line + 1
    return True


def _line(state: StateBlock, line: int) -> str:
    return state.src[state.bMarks[line] + state.tShift[line] : state.eMarks[line]].strip()


def _plain_tag(state: StateInline, silent: bool) -> bool:
    if not state.src.startswith("<", state.pos):
        return False
    if found := _BREAK.match(state.src, state.pos):
        if not silent:
            state.push("hardbreak", "br", 0)
    elif found := _ELEMENT.match(state.src, state.pos):
        if not silent:
            name = found[1].lower()
            state.push(f"{name}_open", name, 1)
            state.push("text", "", 0).content = found[2]
            state.push(f"{name}_close", name, -1)
    else:
        return False
    state.pos = found.end()
    return True
