"""Packing: texts with a common prefix form groups, groups are packed into rows of bounded length.

    row    [prompt A][answer 1][answer 2][answer 3] [text B] [prompt C][answer 4][answer 5]

A prompt that several texts share stands in the row once; each answer sees it and itself. No text is padded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

__all__ = ["Group", "grouped", "into_rows", "padded_rows", "shared_length"]

# A shared beginning shorter than this (a template's first tokens) is not worth the calls that it costs.
_LEAST_SHARED = 16


@dataclass(frozen=True)
class Group:
    """Texts whose first `shared` tokens are the same. `members` are indices of the texts, `lengths` theirs.

    Every member has a token of its own after the shared ones; a single text shares nothing (`shared` 0).
    """

    shared: int
    members: tuple[int, ...]
    lengths: tuple[int, ...]

    @property
    def num_tokens(self) -> int:
        """Tokens that are computed for it."""
        return self.shared + sum(self.lengths) - self.shared * len(self.members)


def shared_length(a: Sequence[int], b: Sequence[int]) -> int:
    """Number of leading tokens that two texts have in common."""
    low, high = 0, min(len(a), len(b))
    while low < high:  # comparing slices is C; comparing tokens one by one is not
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def grouped(texts: Sequence[Sequence[int]]) -> list[Group]:
    """Groups over all `texts`, each with whatever beginning pays; in the order of their first members.

    Sorted, texts with the same beginning are neighbours. One joins the group before it where that lessens the tokens
    to compute: it saves its own beginning, but may shorten the one that the others share.
    """
    order = sorted(range(len(texts)), key=lambda index: list(texts[index]))
    groups: list[Group] = []
    for index in order:
        length = len(texts[index])
        alone = Group(0, (index,), (length,))
        joined = _join(groups[-1], texts, alone) if groups else None
        if joined is None:
            groups.append(alone)
        else:
            groups[-1] = joined
    groups = [replace(group, members=m, lengths=n) for group in groups for m, n in (_in_order(group),)]
    return sorted(groups, key=lambda group: group.members[0])


def _join(group: Group, texts: Sequence[Sequence[int]], other: Group) -> Group | None:
    common = shared_length(texts[group.members[-1]], texts[other.members[0]])
    lengths = group.lengths + other.lengths
    shared = min(common, min(lengths) - 1, *((group.shared,) if len(group.members) > 1 else ()))
    joined = Group(shared, group.members + other.members, lengths)
    saved = group.num_tokens + other.num_tokens - joined.num_tokens
    return joined if shared >= _LEAST_SHARED and saved >= _LEAST_SHARED else None


def _in_order(group: Group) -> tuple[tuple[int, ...], tuple[int, ...]]:
    pairs = sorted(zip(group.members, group.lengths, strict=True))
    return tuple(member for member, _ in pairs), tuple(length for _, length in pairs)


def into_rows(groups: Iterable[Group], max_tokens: int) -> list[tuple[Group, ...]]:
    """Rows of at most `max_tokens` tokens, first come, first served; a text that is longer has a row to itself.

    A group that fits no row is divided, and each part computes the shared beginning anew.
    """
    rows: list[list[Group]] = []
    left = 0
    for group in groups:
        for part in _parts(group, max_tokens):
            if not rows or part.num_tokens > left:
                rows.append([])
                left = max_tokens
            rows[-1].append(part)
            left -= part.num_tokens
    return [tuple(row) for row in rows]


def _parts(group: Group, max_tokens: int) -> Iterator[Group]:
    if group.num_tokens <= max_tokens:
        yield group
        return
    members: list[int] = []
    used = group.shared
    for index, length in enumerate(group.lengths):
        own = length - group.shared
        if members and used + own > max_tokens:
            yield _part(group, members)
            members, used = [], group.shared
        members.append(index)
        used += own
    yield _part(group, members)


def _part(group: Group, members: Sequence[int]) -> Group:
    shared = group.shared if len(members) > 1 else 0
    return Group(shared, tuple(group.members[i] for i in members), tuple(group.lengths[i] for i in members))


def padded_rows(lengths: Sequence[int], max_tokens: int) -> list[tuple[Group, ...]]:
    """Batches for bodies that take one text a row: of like length, at most `max_tokens` with their padding.

    The batch of the first text comes first.
    """
    order = sorted(range(len(lengths)), key=lambda index: lengths[index])
    batches: list[list[int]] = []
    for index in order:
        if batches and (len(batches[-1]) + 1) * lengths[index] <= max_tokens:
            batches[-1].append(index)
        else:
            batches.append([index])
    batches.sort(key=min)
    return [tuple(Group(0, (index,), (lengths[index],)) for index in batch) for batch in batches]
