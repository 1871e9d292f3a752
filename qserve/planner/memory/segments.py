"""Torch's caching allocator as far as it decides which segment a block comes to lie in.

A segment goes back to the card only when nothing of it is in use. So one small block that outlives a step keeps a
whole segment, and where it lies follows from the free blocks of that moment: the smallest that it fits in.
Source: pytorch c10/cuda/CUDACachingAllocator.cpp (get_allocation_size, should_split, BlockComparatorSize).
"""

from __future__ import annotations

from dataclasses import dataclass

from qserve.units import MIB

__all__ = ["Block", "CachingAllocator"]

_SMALL = MIB  # requests up to it come from a pool of their own
_MIN_LARGE = 10 * MIB  # below it a segment is shared
_SHARED = 20 * MIB
_ROUND_LARGE = 2 * MIB
_ROUND = 512


@dataclass(frozen=True, order=True)
class Block:
    """A part of a segment; of two that fit the smaller is taken, then the one of the older segment."""

    size: int
    segment: int
    offset: int


class CachingAllocator:
    """The pool of large blocks: which are free, and how large each segment is."""

    def __init__(self) -> None:
        self.free: set[Block] = set()
        self.segments: list[int] = []

    def allocate(self, *requests: int) -> list[Block]:
        """A block for each request, in their order; those of at most 1 MiB lie elsewhere and get none."""
        sizes = (-(-request // _ROUND) * _ROUND for request in requests)
        return [self._allocate(size) for size in sizes if size > _SMALL]

    def release(self, blocks: list[Block]) -> None:
        """Blocks are free again, and one with the free ones beside them."""
        for block in blocks:
            beside = {
                other
                for other in self.free
                if other.segment == block.segment
                and (other.offset + other.size == block.offset or block.offset + block.size == other.offset)
            }
            self.free -= beside
            start = min(part.offset for part in (block, *beside))
            self.free.add(Block(sum(part.size for part in (block, *beside)), block.segment, start))

    def _allocate(self, size: int) -> Block:
        found = min((block for block in self.free if block.size >= size), default=None)
        if found is None:
            whole = _SHARED if size < _MIN_LARGE else -(-size // _ROUND_LARGE) * _ROUND_LARGE
            found = Block(whole, len(self.segments), 0)
            self.segments.append(whole)
        self.free.discard(found)
        if found.size - size <= _SMALL:  # a remainder that small is not split off
            return found
        self.free.add(Block(found.size - size, found.segment, found.offset + size))
        return Block(size, found.segment, found.offset)
