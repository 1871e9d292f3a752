"""What torch's CUDA caching allocator counts for one tensor: its block, not its bytes.

Large requests get a segment rounded up to 2 MiB, and a remainder of at most 1 MiB is not split off: it counts as
allocated. On Qwen2.5-7B that is 56 MiB of the 14.25 GiB that vLLM logs, on Qwen2.5-14B 144 MiB in transformers.
Source: pytorch c10/cuda/CUDACachingAllocator.cpp (kMinLargeAlloc, kRoundLarge, kSmallSize, should_split).
"""

from __future__ import annotations

from qserve.core.hardware import Device
from qserve.planner.constants import CUBLAS_WORKSPACE_AMPERE, CUBLAS_WORKSPACE_HOPPER
from qserve.units import MIB

__all__ = ["allocated_bytes", "cublas_workspace"]

_SMALL = MIB
_MIN_LARGE = 10 * MIB
_ROUND_LARGE = 2 * MIB
_ROUND_SMALL = 512


def allocated_bytes(nbytes: int, max_split_bytes: int | None = None) -> int:
    """Bytes that `torch.cuda.memory_allocated` counts for a tensor of `nbytes` in a segment of its own.

    `max_split_bytes` is the allocator's max_split_size: blocks from there on are never split.
    """
    rounded = -(-nbytes // _ROUND_SMALL) * _ROUND_SMALL
    if rounded < _MIN_LARGE:  # shares a segment with others; its remainder is theirs
        return rounded
    block = -(-rounded // _ROUND_LARGE) * _ROUND_LARGE
    never_split = max_split_bytes is not None and block >= max_split_bytes
    return block if never_split or block - rounded <= _SMALL else rounded


def cublas_workspace(device: Device) -> int:
    """Torch's persistent workspace of one stream: 32 MiB from Hopper on, a quarter of it before."""
    is_new = device.compute_capability is not None and device.compute_capability >= (9, 0)
    return (CUBLAS_WORKSPACE_HOPPER if is_new else CUBLAS_WORKSPACE_AMPERE).num_bytes
