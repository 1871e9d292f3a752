"""Grammars in EBNF or Lark that no finite text follows, such as `root ::= root`.

vLLM's library compiles them, and its engine finds no token that may come: a failure where a refusal is due. Whoever
writes one in a dialect that is not read here is told by the engine.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["TooDeep", "rules_have_an_end"]

# Names that are looked up: more than any grammar that a person wrote, and a few milliseconds.
_MOST_LOOKS = 100_000
_MOST_DEEP = 200
_MOST_CHARS = 64 * 1024
_TOKENS = re.compile(
    r"""(?P<blank>\s+|\#[^\n]*|//[^\n]*)
    |(?P<text>"(?:[^"\\\n]|\\.)*"i?|'(?:[^'\\\n]|\\.)*')
    |(?P<define>::=)
    |(?P<name>[A-Za-z_][A-Za-z0-9_.-]*)
    |(?P<quantity>[*+?]|\{\s*(?:\d+\s*)?(?:,\s*(?:\d+\s*)?)?\})
    |(?P<other>[|()])""",
    re.VERBOSE | re.DOTALL,
)
_OF_EBNF = re.compile(r"(?P<text>\[(?:[^\]\\]|\\.)*\])", re.DOTALL)
_OF_LARK = re.compile(
    r"(?P<text>/(?!/)(?:[^/\\\n]|\\.)+/[imslux]*)|(?P<define>:)|(?P<other>[\[\]])|(?P<name>[a-z_][a-z0-9_]*|[A-Z_][A-Z0-9_]*)",
    re.DOTALL,
)
# Of each line the blanks alone: `^\s*` would read all lines that are empty from each of them.
_LARK_RULE = re.compile(r"^[^\S\n]*[?!]*[A-Za-z_][A-Za-z0-9_]*(?:\.-?\d+)?\s*:", re.MULTILINE)


class TooDeep(Exception):
    """Brackets in brackets, more than anybody means."""


class _Unread(Exception):
    """What is not of the dialects that are read here."""


@dataclass(frozen=True)
class _Rules:
    """Of each rule the ways to write it; of each way the rules, and the groups, that it can't do without."""

    ways: dict[str, list[list[str]]]
    root: str


def rules_have_an_end(grammar: str) -> bool:
    """Whether some text ends what `grammar` begins; True for one that can't be read here. Raises TooDeep."""
    if len(grammar) > _MOST_CHARS:
        return True
    try:
        rules = _Reader(grammar).rules()
    except _Unread:
        return True
    if rules.root not in rules.ways:
        return True
    used_by: dict[str, list[str]] = {}
    for name, ways in rules.ways.items():
        for part in {part for way in ways for part in way}:
            used_by.setdefault(part, []).append(name)
    ending: set[str] = {part for part in used_by if part not in rules.ways}  # the engine's own, or its to refuse
    looks, waiting = 0, list(rules.ways)
    while waiting:
        name = waiting.pop()
        if name in ending:
            continue
        ways = rules.ways[name]
        looks += sum(map(len, ways)) + 1
        if looks > _MOST_LOOKS:
            return True
        if any(all(part in ending for part in way) for way in ways):
            ending.add(name)
            waiting += used_by.get(name, [])
    return rules.root in ending


class _Reader:
    """Of one grammar."""

    def __init__(self, grammar: str) -> None:
        self._is_lark = "::=" not in grammar and _LARK_RULE.search(grammar) is not None
        self._tokens = list(self._split(grammar))
        self._at = 0
        self._ways: dict[str, list[list[str]]] = {}

    def rules(self) -> _Rules:
        """All of them. Raises _Unread, TooDeep."""
        while self._at < len(self._tokens):
            kind, name = self._next()
            if kind != "name" or self._peek()[0] != "define":
                raise _Unread
            self._next()
            self._ways.setdefault(name, []).extend(self._alternatives(0))
        return _Rules(self._ways, "start" if self._is_lark else "root")

    def _split(self, grammar: str) -> Iterator[tuple[str, str]]:
        text = _plain_lark(grammar) if self._is_lark else grammar
        own, position = _OF_LARK if self._is_lark else _OF_EBNF, 0
        while position < len(text):
            found = own.match(text, position) or _TOKENS.match(text, position)
            if found is None or found.lastgroup is None:
                raise _Unread
            position = found.end()
            if found.lastgroup != "blank":
                yield found.lastgroup, found[0]

    def _peek(self, ahead: int = 0) -> tuple[str, str]:
        at = self._at + ahead
        return self._tokens[at] if at < len(self._tokens) else ("end", "")

    def _next(self) -> tuple[str, str]:
        token = self._peek()
        self._at += 1
        return token

    def _alternatives(self, depth: int) -> list[list[str]]:
        """Up to the end of the rule, or of the bracket."""
        if depth > _MOST_DEEP:
            raise TooDeep
        ways: list[list[str]] = [[]]
        while True:
            kind, text = self._peek()
            if kind == "end" or text in (")", "]") or (kind == "name" and self._peek(1)[0] == "define"):
                return ways
            self._next()
            if text == "|":
                ways.append([])
                continue
            part, is_needed = self._part(kind, text, depth)
            if part is not None and is_needed and not self._is_left_out():
                ways[-1].append(part)

    def _part(self, kind: str, text: str, depth: int) -> tuple[str | None, bool]:
        """The rule or group that a token begins, None for text; and whether it is needed but for a quantity behind."""
        if kind == "name":
            return text, True
        if kind == "text":
            self._is_left_out()
            return None, True
        if text not in ("(", "["):
            raise _Unread
        group = f"({len(self._ways)}"  # no rule has such a name
        self._ways[group] = []
        self._ways[group] = self._alternatives(depth + 1)
        if self._next()[1] != {"(": ")", "[": "]"}[text]:
            raise _Unread
        if text == "[":
            self._is_left_out()
        return group, text == "("

    def _is_left_out(self) -> bool:
        """Whether the quantity behind what was read, if there is one, may be none of it."""
        kind, text = self._peek()
        if kind != "quantity":
            return False
        self._next()
        return text in "*?" or re.match(r"\{\s*(?:0+\s*[,}]|,|\})", text) is not None


def _plain_lark(grammar: str) -> str:
    """Without what says nothing of the texts: directives, names of alternatives, marks and priorities of rules."""
    text = re.sub(r"^[^\S\n]*%[^\n]*", "", grammar, flags=re.MULTILINE)
    text = re.sub(r"->\s*[A-Za-z_][A-Za-z0-9_]*", "", text)
    text = re.sub(r"^[^\S\n]*[?!]+", "", text, flags=re.MULTILINE)
    return re.sub(r"^([^\S\n]*[A-Za-z_][A-Za-z0-9_]*)\.-?\d+(\s*:)", r"\1\2", text, flags=re.MULTILINE)
