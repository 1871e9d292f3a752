"""Splits a request's texts into portions, which bounds the time and memory of tokenizing each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from qserve.reward.protocols.job import Text

__all__ = ["is_large", "portions"]

# Some ten milliseconds of tokenizing.
_MAX_TEXTS = 64
_MAX_SIZE = 1 << 16


def portions(texts: Sequence[Text]) -> Iterator[Sequence[Text]]:
    """`texts` in order, cut where a portion has 64 of them or 65,536 characters (token ids count as characters).

    A text that is larger has a portion to itself.
    """
    begin = size = 0
    for index, text in enumerate(texts):
        own = _size(text)
        if index > begin and (index - begin >= _MAX_TEXTS or size + own > _MAX_SIZE):
            yield texts[begin:index]
            begin, size = index, 0
        size += own
    if begin < len(texts):
        yield texts[begin:]


def is_large(portion: Sequence[Text]) -> bool:
    """Whether it is a text that alone is larger than other portions."""
    return len(portion) == 1 and _size(portion[0]) > _MAX_SIZE


def _size(text: Text) -> int:
    content = text.content
    if isinstance(content, Mapping):
        return sum(len(str(part)) for part in content.values())
    if isinstance(content, str) or not content or isinstance(content[0], int):
        return len(content)
    messages = (message for message in content if not isinstance(message, int))
    return sum(len(str(part)) for message in messages for part in message.values())
