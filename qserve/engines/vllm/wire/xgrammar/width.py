"""How many ways a pattern leaves open for characters of nearly any kind: what xgrammar compiles over the vocabulary.

A part that takes nearly any character and may be left out (`.{0,8}`, `[^,]?`) makes each token of the vocabulary fit in
many ways, and xgrammar looks at all of them: 2 seconds of a core by 0.2.8 for one `.{0,128}` in a schema's pattern, 11
for two, more than 25 for sixteen `.{0,8}`. Narrow classes (`[a-z]{0,128}` eight times) take it 0.1. In an expression or
a grammar of its own it copies no repetition, and `[^x]?` alone is dear: 16 seconds for 32 of them in a row.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["Width", "width_of"]

_PART = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*(?:\]|\Z)|\(\?[:=!]|\{\d*(?:,\d*)?\}|.", re.DOTALL)
_TIMES = re.compile(r"\{(\d*)(?:(,)(\d*))?\}")
_WIDE = frozenset({".", "\\S", "\\W", "\\D", "\\N"})
_MOST = 10**6


@dataclass
class Width:
    """`ways`: characters of nearly any kind that may be there or not; `num_parts`: places where they stand."""

    ways: int = 0
    num_parts: int = 0
    is_wide: bool = False

    def add(self, other: Width) -> None:
        """What stands beside it."""
        self.ways = min(_MOST, self.ways + other.ways)
        self.num_parts += other.num_parts
        self.is_wide |= other.is_wide

    def times(self, least: int, most: int | None, *, copies: bool) -> Width:
        """It, repeated; None: without an end, which is a loop. `copies`: the library writes a repetition out."""
        if not copies:
            alone = int(self.is_wide and (least, most) == (0, 1))
            return Width(self.ways + alone, self.num_parts + alone, self.is_wide)
        own = (1 if most is None else max(0, most - least)) if self.is_wide else 0
        ways = min(_MOST, self.ways * max(1, most or 1) + own)
        return Width(ways, self.num_parts + bool(own) if ways else 0, self.is_wide)


def width_of(pattern: str, *, copies: bool) -> Width:
    """Of a regular expression, or of those in a grammar; `copies`: as in `Width.times`. What is none has some width."""
    open_groups = [Width()]
    last = Width()
    for part in _PART.findall(pattern):
        if (bounds := _bounds(part)) is not None:
            last = last.times(*bounds, copies=copies)
            continue
        open_groups[-1].add(last)
        last = Width()
        if part.startswith("(") and not part.startswith("(\\"):
            open_groups.append(Width())
        elif part == ")" and len(open_groups) > 1:
            last = open_groups.pop()
        else:
            last = Width(is_wide=part in _WIDE or part.startswith("[^"))
    while open_groups:
        last.add(open_groups.pop())
    return last


def _bounds(part: str) -> tuple[int, int | None] | None:
    if part in ("?", "*", "+"):
        return part == "+", 1 if part == "?" else None
    found = _TIMES.fullmatch(part)
    if found is None:
        return None
    least = _number(found[1])
    most = (None if not found[3] else _number(found[3])) if found[2] else least
    return least, most


def _number(digits: str) -> int:
    """At most `_MOST`; Python reads no number of thousands of digits."""
    significant = digits.lstrip("0")
    return min(_MOST, int(significant or 0)) if len(significant) <= len(str(_MOST)) else _MOST
