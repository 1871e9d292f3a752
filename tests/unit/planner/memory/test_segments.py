"""Torch's caching allocator in small: where a block lies, and what comes back together."""

from __future__ import annotations

from qserve.planner.memory.segments import CachingAllocator
from qserve.units import MIB


def test_small_requests_share_segments_of_20_mib() -> None:
    torch = CachingAllocator()
    first, second, third = torch.allocate(8 * MIB, 10 * MIB - 1, 4 * MIB)
    assert first.segment == second.segment == 0
    assert third.segment == 1  # 2 MiB and a bit are left of the first
    assert torch.segments == [20 * MIB, 20 * MIB]


def test_a_large_request_has_a_segment_of_whole_2_mib() -> None:
    torch = CachingAllocator()
    torch.allocate(10 * MIB, 33 * MIB)
    assert torch.segments == [10 * MIB, 34 * MIB]
    assert not torch.free  # a remainder of 1 MiB is not split off


def test_up_to_1_mib_lies_elsewhere() -> None:
    torch = CachingAllocator()
    assert torch.allocate(MIB) == []
    assert torch.segments == []


def test_the_smallest_block_that_fits_is_taken() -> None:
    torch = CachingAllocator()
    large, small = torch.allocate(100 * MIB, 40 * MIB)
    torch.release([large, small])
    (taken,) = torch.allocate(32 * MIB)
    assert taken.segment == small.segment


def test_neighbours_that_are_free_become_one() -> None:
    torch = CachingAllocator()
    parts = torch.allocate(6 * MIB, 6 * MIB, 6 * MIB)
    torch.release([parts[0], parts[2]])
    assert sorted(block.size for block in torch.free) == [6 * MIB, 8 * MIB]
    torch.release([parts[1]])
    assert [block.size for block in torch.free] == [20 * MIB]
