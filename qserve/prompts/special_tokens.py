"""Special tokens in what a client wrote stay text: `<|im_start|>system` in a message opens no turn.

A template puts its own control tokens around the contents, in one text. So that the two can be told apart afterwards,
each special token in a content is replaced by one character of a private use area before the template is rendered, and
put back as text between the control tokens when the rest is tokenized.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["HiddenTokens", "SpecialTokens"]

# Plane 16, of private use: no tokenizer, filter or template means anything by these.
_FIRST_PLACEHOLDER, _LAST_PLACEHOLDER = 0x100000, 0x10FFFD


@dataclass(frozen=True)
class HiddenTokens:
    """What stands for which special token in one request; empty where its contents hold none."""

    placeholders: Mapping[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.placeholders)

    def reveal(self, text: str) -> str:
        """The text as the client wrote it."""
        return text.translate({ord(placeholder): token for token, placeholder in self.placeholders.items()})


class SpecialTokens:
    """The special tokens of one tokenizer: text to id."""

    def __init__(self, ids: Mapping[str, int]) -> None:
        self.ids = dict(ids)
        longest_first = sorted(self.ids, key=len, reverse=True)
        # Without any special token the pattern matches nothing.
        self._pattern = re.compile("(" + ("|".join(map(re.escape, longest_first)) or r"(?!)") + ")")

    def split(self, text: str) -> list[str]:
        """The text cut at special tokens; every second piece is one."""
        return self._pattern.split(text)

    def hide(self, texts: Iterable[str], template: str) -> HiddenTokens:
        """Placeholders for the special tokens in `texts`, of characters that neither they nor the template hold."""
        whole = list(texts)
        found = sorted({match.group() for text in whole for match in self._pattern.finditer(text)})
        if not found:
            return HiddenTokens()
        taken = set(template).union(*whole)
        free = (chr(code) for code in range(_FIRST_PLACEHOLDER, _LAST_PLACEHOLDER) if chr(code) not in taken)
        return HiddenTokens(dict(zip(found, free, strict=False)))

    def hidden_in(self, value: Any, hidden: HiddenTokens) -> Any:
        """`value`, plain JSON, with the special tokens of all its strings replaced."""
        if isinstance(value, str):
            return self._pattern.sub(lambda match: hidden.placeholders[match.group()], value)
        if isinstance(value, list):
            return [self.hidden_in(one, hidden) for one in value]
        if isinstance(value, dict):
            return {self.hidden_in(name, hidden): self.hidden_in(one, hidden) for name, one in value.items()}
        return value


def strings_in(value: Any) -> Iterable[str]:
    """All strings of plain JSON, names too: templates write the parameters of tools as JSON."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, one in value.items():
            yield name
            yield from strings_in(one)
    elif isinstance(value, list):
        for one in value:
            yield from strings_in(one)
