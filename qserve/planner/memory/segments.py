"""Torch's caching allocator as far as it decides which segment a block comes to lie in.

A segment goes back to the card only when nothing of it is in use. So one small block that outlives a step keeps a
whole segment, and where it lies follows from the free blocks of that moment: the smallest that it fits in.
Source: pytorch c10/cuda/CUDACachingAllocator.cpp (get_allocation_size, should_split, BlockComparatorSize).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import NamedTuple

from qserve.units import MIB

__all__ = ["Block", "CachingAllocator"]

_SMALL = MIB  # requests up to it come from a pool of their own
_MIN_LARGE = 10 * MIB  # below it a segment is shared
_SHARED = 20 * MIB
_ROUND_LARGE = 2 * MIB
_ROUND = 512


class Block(NamedTuple):
    """A part of a segment; of two that fit the smaller is taken, then the one of the older segment."""

    size: int
    segment: int
    offset: int


class CachingAllocator:
    """The pool of large blocks: which are free, how large each segment is, and what `memory_allocated` would say.

    `max_split_bytes` is the allocator's max_split_size: requests from there on keep the whole segment.
    """

    def __init__(self, max_split_bytes: int | None = None) -> None:
        self.max_split_bytes = max_split_bytes
        self.free: list[Block] = []  # sorted
        self.segments: list[int] = []
        self.allocated = 0

    def copy(self) -> CachingAllocator:
        """Another one in the same state."""
        other = CachingAllocator(self.max_split_bytes)
        other.free, other.segments, other.allocated = [*self.free], [*self.segments], self.allocated
        return other

    def allocate(self, *requests: int) -> list[Block]:
        """A block for each request, in their order; those of at most 1 MiB lie elsewhere and get none."""
        blocks = []
        for request in requests:
            size = -(-request // _ROUND) * _ROUND
            if size > _SMALL:
                blocks.append(self._allocate(size))
                size = blocks[-1].size
            self.allocated += size
        return blocks

    def release(self, blocks: list[Block]) -> None:
        """Blocks are free again, and one with the free ones beside them."""
        for block in blocks:
            beside = [
                other
                for other in self.free
                if other.segment == block.segment
                and (other.offset + other.size == block.offset or block.offset + block.size == other.offset)
            ]
            for other in beside:
                self.free.remove(other)
            start = min(part.offset for part in (block, *beside))
            insort(self.free, Block(sum(part.size for part in (block, *beside)), block.segment, start))
            self.allocated -= block.size

    def _allocate(self, size: int) -> Block:
        position = bisect_left(self.free, Block(size, -1, -1))
        if position < len(self.free):
            found = self.free.pop(position)
        else:
            whole = _SHARED if size < _MIN_LARGE else -(-size // _ROUND_LARGE) * _ROUND_LARGE
            found = Block(whole, len(self.segments), 0)
            self.segments.append(whole)
        is_whole = self.max_split_bytes is not None and size >= self.max_split_bytes
        if is_whole or found.size - size <= _SMALL:  # a remainder that small is not split off
            return found
        insort(self.free, Block(found.size - size, found.segment, found.offset + size))
        return Block(size, found.segment, found.offset)
