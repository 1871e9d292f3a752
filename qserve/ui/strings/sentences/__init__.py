"""The program's own sentences in 简体中文: those that the pages show and that other parts of qserve write.

A row is an English sentence with `{}` for what is inserted (`{#}` for a number or a size), and the same in Chinese.
What is inserted may be a sentence of the tables itself. The rows follow the words of the program: a test finds each
sentence of the kept plans (tests/golden/plans) that has no row.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache, lru_cache

from qserve.ui.strings.sentences.formulas import FORMULAS
from qserve.ui.strings.sentences.guesses import GUESSES
from qserve.ui.strings.sentences.plan_only import CARDS_OF_OTHERS
from qserve.ui.strings.sentences.planner import PLANNER
from qserve.ui.strings.sentences.refusals import REFUSALS
from qserve.ui.strings.sentences.service import SERVICE

__all__ = ["SENTENCES", "has_english", "said", "shown"]

SENTENCES: dict[str, str] = {**SERVICE, **PLANNER, **FORMULAS, **REFUSALS, **GUESSES, **CARDS_OF_OTHERS}

_SEPARATORS = {"; ": "；", " · ": " · ", ", ": "，", " + ": " + "}
# Numbers, sizes and arithmetic: the same in every language.
_NEUTRAL = re.compile(r"(?:[\d\s.,:%×·/()=+−–-]|\b(?:B|KiB|MiB|GiB|TiB|ms|s|min|h)\b)*")
_NUMBER = re.compile(r"[\d.,·/()]+(?: (?:B|KiB|MiB|GiB|TiB|%))?")
_FIELD = re.compile(r"\{#?\}")
_MOST_CHARS = 1000
"""The program's longest sentences have half of it; what is longer is somebody else's."""
_MOST_DEPTH = 12
"""The program's sentences hold one another in 7 levels at most; below the last, only names are taken."""
# Names, figures, flags with their values and commands have no two English words in a row.
_COMMANDS = re.compile(r"--[\w-]+(?:[ =][^\s;，；]+)?|\b(?:qserve|vllm|pip|psutil) \w+")
_WORDS = re.compile(r"\b[a-z]{2,} [a-z]{2,}\b")


def said(language: str, text: str) -> str | None:
    """The sentence in the language; None where no row has it. English is as it was written."""
    if language != "zh-CN":
        return text
    return _chinese(text) if len(text) <= _MOST_CHARS else None


def shown(language: str, text: str) -> str:
    """The same, or the sentence as it was written."""
    told = said(language, text)
    return text if told is None else told


def has_english(text: str) -> bool:
    """Whether there are English words in it, apart from commands."""
    return _WORDS.search(_COMMANDS.sub("", text)) is not None


@lru_cache(4096)
def _chinese(text: str, depth: int = 0) -> str | None:
    if text in SENTENCES:
        return SENTENCES[text]
    if _NEUTRAL.fullmatch(text):
        return text
    for row in _rows():
        found = row.fields_of(text)
        if found and None not in (told := [_inserted(part, depth + 1) for part in found]):
            return row.chinese.format(*told)
    # Several sentences, or parts of a sum: each has a row of its own.
    for separator, joint in _SEPARATORS.items():
        parts = text.split(separator)
        told = [_inserted(part, depth + 1) for part in parts] if len(parts) > 1 else [None]
        if None not in told and told != parts:
            return joint.join(str(one) for one in told)
    return None


def _inserted(part: str, depth: int) -> str | None:
    """What a sentence names: a sentence or a term of the tables, or a name, which is no language's."""
    told = _chinese(part, depth) if depth <= _MOST_DEPTH else None
    return part if told is None and not has_english(part) else told


@dataclass(frozen=True)
class _Row:
    """A sentence with fields: the words between them, which of them hold a number, and the sentence in Chinese."""

    words: tuple[str, ...]
    is_number: tuple[bool, ...]
    chinese: str

    def fields_of(self, text: str) -> list[str] | None:
        """What is inserted where, each word at its first place; None for another sentence. Linear in the text."""
        first, *rest = self.words
        if not (text.startswith(first) and text.endswith(rest[-1])):
            return None
        fields, begin = [], len(first)
        for number, word in enumerate(rest):
            is_last = number == len(rest) - 1
            end = len(text) - len(word) if is_last else text.find(word, begin + 1)
            if end <= begin:
                return None
            fields.append(text[begin:end])
            begin = end + len(word)
        numbers = (field for field, is_number in zip(fields, self.is_number, strict=True) if is_number)
        return fields if all(_NUMBER.fullmatch(one) for one in numbers) else None


@cache
def _rows() -> list[_Row]:
    """Those with the most words of their own first: a short one would take what a long one says."""
    rows = []
    for english, chinese in SENTENCES.items():
        words, fields = _FIELD.split(english), _FIELD.findall(english)
        if fields:
            rows.append(_Row(tuple(words), tuple(one == "{#}" for one in fields), chinese))
    return sorted(rows, key=lambda row: -len("".join(row.words)))
