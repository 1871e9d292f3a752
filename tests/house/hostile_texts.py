"""Texts that make a regular expression work as long as it can: for each of its repetitions what leads there, then many
rounds of it, then what fits nowhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from re import _constants as sre  # type: ignore[attr-defined]
from re import _parser as parser
from typing import Any

__all__ = ["hostile_texts"]

_REPEATS = (sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT)
_CANDIDATES = "\n a1_-.,;:=+*|/\\<>()[]{}\"'`$%#@!?~^&Aあ\x00"
_NOWHERE = "\x01"


def hostile_texts(pattern: str, flags: int, length: int) -> Iterator[str]:
    """Each about `length` characters long."""
    for before, rounds in _repetitions(parser.parse(pattern, flags), flags, [""]):
        for round_ in rounds:
            run = round_ * (length // len(round_))
            yield before + run + _NOWHERE
            yield run + before + _NOWHERE
            once = before + round_
            yield once * (length // len(once)) + _NOWHERE


def _repetitions(tree: Any, flags: int, before: list[str]) -> Iterator[tuple[str, list[str]]]:
    """What leads to each repetition without an end, and rounds of it; `before` grows to what leads behind the tree."""
    for kind, value in tree:
        if kind in _REPEATS:
            least, most, body = value
            if most is sre.MAXREPEAT:
                yield before[0], [text for text in _samples(body, flags) if text]
            yield from _repetitions(body, flags, [before[0]])
            before[0] += _samples(body, flags)[0] * least
        elif kind is sre.SUBPATTERN:
            yield from _repetitions(value[-1], flags, before)
        elif kind is sre.ATOMIC_GROUP:
            yield from _repetitions(value, flags, before)
        elif kind is sre.BRANCH:
            ways = [[before[0]] for _ in value[1]]
            for way, branch in zip(ways, value[1], strict=True):
                yield from _repetitions(branch, flags, way)
            before[0] = ways[0][0]
        elif kind in (sre.ASSERT, sre.ASSERT_NOT):
            yield from _repetitions(value[1], flags, [before[0]])
        else:
            before[0] += _samples([(kind, value)], flags)[0]


def _samples(tree: Any, flags: int) -> list[str]:
    """Short texts that match, several where the first part may be several things."""
    texts = [""]
    for kind, value in tree:
        if kind is sre.SUBPATTERN:
            found = _samples(value[-1], flags)
        elif kind is sre.ATOMIC_GROUP:
            found = _samples(value, flags)
        elif kind is sre.BRANCH:
            found = [text for branch in value[1] for text in _samples(branch, flags)]
        elif kind in _REPEATS:
            found = [text * max(1, value[0]) for text in _samples(value[2], flags)]
        elif kind is sre.LITERAL:
            found = [chr(value)]
        elif kind in (sre.IN, sre.ANY, sre.NOT_LITERAL):
            found = _characters(kind, value, flags)
        else:  # a place, a look around, a group again: no characters of their own
            found = [""]
        texts = [text + one for text in texts for one in found][:4]
    return texts


def _characters(kind: Any, value: Any, flags: int) -> list[str]:
    tree = parser.SubPattern(parser.State(), [(kind, value)])
    one = re._compiler.compile(tree, flags & ~re.VERBOSE)  # type: ignore[attr-defined]
    literals = [chr(part[1]) for part in value if part[0] is sre.LITERAL] if kind is sre.IN else []
    return [char for char in (*_CANDIDATES, *literals) if one.fullmatch(char)][:4] or ["z"]
