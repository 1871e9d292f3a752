"""What is read out of generated text, in the order in which it comes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

__all__ = ["Arguments", "BlockReader", "CallBegins", "Content", "Part", "Reasoning", "overlap"]


@dataclass(frozen=True)
class Reasoning:
    """More of the thought."""

    text: str


@dataclass(frozen=True)
class Content:
    """More of what the user is to read."""

    text: str


@dataclass(frozen=True)
class CallBegins:
    """A tool is called; its arguments follow."""

    name: str


@dataclass(frozen=True)
class Arguments:
    """More of the arguments of the latest call: JSON as text."""

    text: str


Part = Reasoning | Content | CallBegins | Arguments


class BlockReader(Protocol):
    """Reads what stands between `<tool_call>` and `</tool_call>`."""

    def push(self, text: str) -> list[Part]:
        """What this text completes. It may end within a call."""

    def ends_within_text(self, end: str) -> bool:
        """Whether `end`, which was just seen, is data of the call rather than its end."""

    def close(self) -> list[Part]:
        """What is left at the end of the block. Empty, and never any part before, where it was no call."""


def overlap(text: str, tag: str) -> int:
    """Length of the longest end of `text` that `tag` begins with."""
    for length in range(min(len(text), len(tag) - 1), 0, -1):
        if tag.startswith(text[-length:]):
            return length
    return 0
