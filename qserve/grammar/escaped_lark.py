"""A Lark grammar of a text, rewritten into one of that text inside a JSON string.

Models of the hermes format write a custom tool's text as a JSON string, so what its grammar says of `"`, `\\` and line
breaks has to hold for their escapes. The library's lexer takes the longest match and never goes back, and many escapes
begin with the same character: every literal and expression becomes a rule of single characters, each one a lexeme.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping

__all__ = ["NotEscapable", "escaped_lark"]

_TOKENS = re.compile(
    r"""(?P<comment>(?:\#|//)[^\n]*)
    |"(?P<first>(?:\\.|[^"\\\n])+)"\s*\.\.\s*"(?P<last>(?:\\.|[^"\\\n])+)"
    |(?P<text>"(?:\\.|[^"\\\n])*")(?P<any_case>i?)
    |/(?P<regex>(?:\\.|[^/\\\n])+)/(?P<flags>[imslux]*)
    |%import\s+common\s*(?:\.(?P<name>\w+)(?:\s*->\s*(?P<alias>\w+))?|\((?P<names>[\w\s,]+)\))
    |(?P<refused>[~&]|%\w+|<[^<>\s]+>|\[[^\]=]{0,100}=[^\]]{0,100}\])
    |(?P<terminal>\b_?[A-Z][A-Z0-9_]*\b)
    |(?P<other>\w+|.)""",
    re.VERBOSE | re.DOTALL,
)
_REGEX = re.compile(
    r"""(?P<set>\[\^?\]?(?:\\.|[^\]\\])*\]|\\[dDwWsS]|\.)
    |\\(?:x(?P<hex>[0-9A-Fa-f]{2})|[xu]\{(?P<braced>[0-9A-Fa-f]+)\}|u(?P<four>[0-9A-Fa-f]{4}))
    |\\(?P<char>[^A-Za-z0-9]|[nrtfv0])
    |(?P<open>\((?:\?(?::|P?<\w+>))?(?!\?))
    |(?P<many>[*+?]|\{\d+(?:,\d*)?\})\??
    |(?P<close>[)|])
    |(?P<plain>[^\\\[\]()|*+?.^$])""",
    re.VERBOSE | re.DOTALL,
)
_CHARS = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "0": "\0"}
# Characters that a JSON string holds by an escape; it holds other control characters in no way.
_ESCAPES = {char: json.dumps(char)[1:-1] for char in '"\\\n\r\t\b\f'}
_AS_IT_IS = r'[^"\\\x00-\x1F]'
# Lark's own terminals that the library knows.
_COMMON: Mapping[str, str] = {
    "DIGIT": "[0-9]",
    "HEXDIGIT": "[a-fA-F0-9]",
    "INT": "[0-9]+",
    "SIGNED_INT": "[+-]?[0-9]+",
    "DECIMAL": r"[0-9]+\.[0-9]*|\.[0-9]+",
    "FLOAT": r"[0-9]+[eE][+-]?[0-9]+|([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?",
    "NUMBER": r"[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?",
    "SIGNED_NUMBER": r"[+-]?[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?",
    "ESCAPED_STRING": r'"([^"\\\n]|\\.)*"',
    "LCASE_LETTER": "[a-z]",
    "UCASE_LETTER": "[A-Z]",
    "LETTER": "[A-Za-z]",
    "WORD": "[A-Za-z]+",
    "CNAME": "[_A-Za-z][_A-Za-z0-9]*",
    "WS_INLINE": r"[ \t]+",
    "WS": r"[ \t\f\r\n]+",
    "CR": r"\r",
    "LF": r"\n",
    "NEWLINE": r"(\r?\n)+",
}
_NOT_HELD = "can't be enforced in a call that is written as a JSON string"


class NotEscapable(ValueError):
    """What the grammar asks for that can't be said of a JSON string."""


def escaped_lark(grammar: str) -> str:
    """The grammar of the escaped text. Raises NotEscapable, in words for the client."""
    return "".join(_rewritten(token) for token in _TOKENS.finditer(grammar))


def _rewritten(token: re.Match[str]) -> str:
    if token["refused"]:
        raise NotEscapable(f"'{token['refused'][:40]}' {_NOT_HELD}")
    if token["first"]:
        return _of_set(f"[{re.escape(_decoded(token['first']))}-{re.escape(_decoded(token['last']))}]", "")
    if token["text"]:
        chars = [_of_char(char, "i" if token["any_case"] else "") for char in _decoded(token["text"][1:-1])]
        return f"({' '.join(chars)})" if chars else '""'
    if token["regex"]:
        return _of_regex(token["regex"].replace("\\/", "/"), token["flags"])
    if token["name"] or token["names"]:
        return "\n".join(_imports(token))
    return _rule(token["terminal"]) if token["terminal"] else token[0]


def _rule(terminal: str) -> str:
    """A terminal may hold no rules; so it is one."""
    return f"terminal_{terminal.lower()}"


def _decoded(inner: str) -> str:
    try:
        return str(json.loads(f'"{inner}"'))
    except ValueError:
        raise NotEscapable(f'"{inner[:40]}" is not written as a JSON string') from None


def _imports(token: re.Match[str]) -> Iterator[str]:
    for name in [token["name"]] if token["name"] else re.findall(r"\w+", token["names"]):
        if name not in _COMMON:
            raise NotEscapable(f"'common.{name[:40]}' is not known; there are {', '.join(_COMMON)}")
        yield f"{_rule(token['alias'] or name)}: {_of_regex(_COMMON[name], '')}"


def _of_regex(pattern: str, flags: str) -> str:
    """An expression as what a rule is made of. `flags` as Lark writes them."""
    if set(flags) & set("xml"):
        raise NotEscapable(f"an expression with the flags '{flags}' {_NOT_HELD}")
    parts, at = list[str](), 0
    while at < len(pattern):
        token = _REGEX.match(pattern, at)
        if token is None:
            raise NotEscapable(f"'{pattern[at : at + 40]}' of an expression {_NOT_HELD}")
        at = token.end()
        parts.append(_of_part(token, flags))
    return f"({_with_empty(' '.join(parts))})"


def _of_part(token: re.Match[str], flags: str) -> str:
    if token["open"] or token["close"] or token["many"]:
        return "(" if token["open"] else str(token["close"] or token["many"])
    if token["set"]:
        return _of_set(token["set"], flags)
    if (code := token["hex"] or token["braced"] or token["four"]) is not None:
        return _of_char(chr(int(code, 16)), flags)
    char = token["char"]
    return _of_char(str(token["plain"]) if char is None else _CHARS.get(char, char), flags)


def _with_empty(rule: str) -> str:
    """What may be empty, said: `(a | )`."""
    rule = re.sub(r"(?<!\S)(\(|\|) (?=[|)](?!\S))", r'\1 "" ', f" {rule} ")
    return re.sub(r"\| *$", '| ""', rule).strip()


def _of_char(char: str, flags: str) -> str:
    if "i" in flags and char.lower() != char.upper():
        return _of_set(f"[{re.escape(char.lower())}{re.escape(char.upper())}]", "")
    if char not in _ESCAPES and char < " ":
        raise NotEscapable(f"a JSON string can't hold the character {char!r} unescaped")
    return json.dumps(_ESCAPES.get(char, char), ensure_ascii=False)


def _of_set(written: str, flags: str) -> str:
    """Those of the set that stand as they are, or the escapes of those that don't."""
    if written.startswith("[") and re.search(r"(?<!\\)\[|&&|--|~~", written[1:]):
        raise NotEscapable(f"'{written[:40]}', a set within a set, {_NOT_HELD}")
    try:
        one = re.compile(written, re.DOTALL if "s" in flags else 0)
    except re.error as error:
        raise NotEscapable(f"'{written[:40]}' is not a set of characters: {error}") from None
    plain = written if written != "." else (r"[\x00-\u{10FFFF}]" if "s" in flags else r"[^\n]")
    of_case = "(?i:" if "i" in flags else "(?:"
    escapes = [re.escape(escape) for char, escape in _ESCAPES.items() if one.fullmatch(char)]
    lexeme = "|".join([f"{of_case}[{plain}&&{_AS_IT_IS}])", *escapes])
    return "/" + lexeme.replace("/", "\\/") + "/"
