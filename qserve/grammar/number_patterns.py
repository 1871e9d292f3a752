"""Numbers within bounds as regular expressions over their digits, exact however many these are."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from decimal import Decimal
from itertools import groupby

from qserve.grammar.number_bounds import EXACT, Number

__all__ = ["number_pattern", "whole_pattern"]

_MOST_DIGITS, _KEPT_DIGITS = 40, 20


def number_pattern(lowest: Number | None, highest: Number | None) -> str | None:
    """Of all numbers from `lowest` to `highest`, None: without a bound there. None where there are none.

    Beyond whole doubles a fraction would be read as a neighbour of its number: there are whole numbers alone.
    """
    least, most = None if lowest is None else math.ceil(lowest), None if highest is None else math.floor(highest)
    ways = [whole_pattern(least, most)]
    low, high = max(-EXACT, lowest or -EXACT * (lowest is None)), min(EXACT, highest or EXACT * (highest is None))
    if low < 0:
        ways.append(_signed(_fractions(max(0, -high), -low)))
    if high >= 0:
        ways.append(_fractions(max(0, low), high))
    return _either(ways)


def whole_pattern(lowest: int | None, highest: int | None) -> str | None:
    """Of whole numbers."""
    ways = []
    if lowest is None or lowest < 0:
        ways.append(_signed(_counts(max(1, -(highest or 0)), None if lowest is None else -lowest)))
    if highest is None or highest >= 0:
        ways.append(_counts(max(0, lowest or 0), highest))
    return _either(ways)


def _signed(pattern: str | None) -> str | None:
    return None if pattern is None else f"-{pattern}"


def _counts(lowest: int, highest: int | None) -> str | None:
    """Whole numbers without a sign. Of very long bounds they themselves, and between them what fewer digits bound."""
    if highest is not None and lowest > highest:
        return None
    inner = _inwards(lowest, up=True), None if highest is None else _inwards(highest, up=False)
    if inner == (lowest, highest):
        return _spanned(lowest, highest)
    ends = [_short(str(end)) for end in (lowest, highest) if end is not None]
    return _either([*ends, _spanned(*inner) if inner[1] is None or inner[0] <= inner[1] else None])


def _inwards(bound: int, *, up: bool) -> int:
    """`bound`, or next to it a number of which few digits are none: each digit of a bound takes patterns of its own."""
    num_digits = len(str(bound))
    step = 10 ** (num_digits - _KEPT_DIGITS) if num_digits > _MOST_DIGITS else 1
    return -(-bound // step) * step if up else bound // step * step


def _spanned(lowest: int, highest: int | None) -> str | None:
    first, last = str(lowest), "" if highest is None else str(highest)
    if len(first) == len(last):
        return _either(_between(first, last))
    most = "" if highest is None else str(len(last) - 2)
    longer = f"[1-9][0-9]{{{len(first)},{most}}}" if highest is None or len(last) - len(first) > 1 else None
    longest = _between("1".ljust(len(last), "0"), last) if last else []
    return _either([*_between(first, "9" * len(first)), longer, *longest])


def _fractions(lowest: Number, highest: Number) -> str | None:
    """Numbers with a point, without a sign."""
    if lowest > highest:
        return None
    (first, from_places), (last, to_places) = _parts(lowest), _parts(highest)
    if first == last:
        return f"{first}\\.{_places(from_places, to_places)}"
    inner = _counts(first + 1, last - 1)
    return _either(
        [
            f"{first}\\.{_places(from_places, None)}",
            f"{last}\\.{_places('', to_places)}",
            None if inner is None else f"{inner}\\.[0-9]+",
        ]
    )


def _parts(value: Number) -> tuple[int, str]:
    """The whole part, and the digits behind the point."""
    whole, _, places = f"{Decimal(repr(value)):f}".partition(".")
    return int(whole), places.rstrip("0")


def _places(first: str, last: str | None) -> str | None:
    """Digits behind the point, from those of `first` to those of `last`; None: all that follow."""
    size = max(1, len(first), len(last or ""))
    begin, end = first.ljust(size, "0"), "9" * size if last is None else last.ljust(size, "0")
    beyond = "[0-9]*" if last is None else "0*"
    if begin == end:
        return f"{_short(begin)}{beyond}"
    _, *ways, of_last = _between(begin, end, "[0-9]*")
    apart = next(number for number in range(size) if begin[number] != end[number])
    ended = [] if last is None else _runs(end, apart + 1)
    shorter = [f"{_short(end[:at])}{end[at]}{{0,{times - 1}}}" for at, times in ended]
    return _either([f"{_short(begin)}[0-9]*", *ways, *shorter, f"{of_last}{beyond}"])


def _between(first: str, last: str, beyond: str = "") -> list[str]:
    """Digits from `first` to `last`, as many as both have; `beyond`: what may follow all but these two.

    The first of the ways is `first`, and the last one `last`.
    """
    size = len(first)
    apart = next((number for number in range(size) if first[number] != last[number]), None)
    if apart is None:
        return [_short(first)]
    # What has only zeros, or only nines, before it goes on as it likes.
    begin = first[: max(apart + 1, len(first.rstrip("0")))] if not beyond else first
    end = last[: max(apart + 1, len(last.rstrip("9")))] if not beyond else last
    ways = [_way(first[:apart], int(first[apart]) + 1, int(last[apart]) - 1, beyond or _any(size - apart - 1))]
    for digits, is_first in ((begin, True), (end, False)):
        for at, times in _runs(digits, apart + 1):
            least, most = (int(digits[at]) + 1, 9) if is_first else (0, int(digits[at]) - 1)
            if beyond:
                ways.append(_way(digits[:at], least, most, beyond, f"{digits[at]}{{0,{times - 1}}}"))
            else:
                ways += [_way(digits[:one], least, most, _any(size - one - 1)) for one in range(at, at + times)]
    return [_short(begin) + _any(size - len(begin)), *filter(None, ways), _short(end) + _any(size - len(end))]


def _runs(digits: str, begin: int) -> Iterator[tuple[int, int]]:
    """From `begin` on, where equal digits begin, and how many they are."""
    for _, run in groupby(range(begin, len(digits)), key=digits.__getitem__):
        at, *others = run
        yield at, len(others) + 1


def _way(before: str, least: int, most: int, beyond: str, repeated: str = "") -> str:
    """Digits that begin as `before`, go on with one from `least` to `most`, and then as they like; empty for none."""
    return "" if least > most else f"{_short(before)}{repeated}[{least}-{most}]{beyond}"


def _any(num_digits: int) -> str:
    return f"[0-9]{{{num_digits}}}" if num_digits else ""


def _short(digits: str) -> str:
    """Many zeros as their number: 5e-324 has 323."""
    return re.sub("0{8,}", lambda found: f"0{{{len(found[0])}}}", digits)


def _either(ways: Sequence[str | None]) -> str | None:
    """Each way once, as one pattern."""
    found = list(dict.fromkeys(way for way in ways if way is not None))
    return None if not found else found[0] if len(found) == 1 else f"({'|'.join(found)})"
