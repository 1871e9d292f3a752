"""Memory of weights in pages of 2 MiB, which Linux lends to who asks for them (transparent huge pages, `madvise`).

Products read a weight from end to end. Every 4 KiB a processor looks up where the next page lies, twice in a virtual
machine, and what is fetched ahead waits for that too.
"""

from __future__ import annotations

import contextlib
import mmap

import torch

__all__ = ["empty_bytes"]

_HUGE = 2 * 1024**2
_ADVICE = getattr(mmap, "MADV_HUGEPAGE", None)  # Linux alone has it


def empty_bytes(count: int) -> torch.Tensor:
    """uint8 [count] of any values, at a cache line; from 2 MiB on at a huge page.

    No byte more is taken than `count` needs: what is left behind the last whole huge page lies in small ones.
    """
    if count < _HUGE or _ADVICE is None:
        return torch.empty(count, dtype=torch.uint8)  # torch aligns what is its own at a cache line
    reserved = mmap.mmap(
        -1, count + _HUGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    )  # pages are taken when they are written
    whole = torch.frombuffer(reserved, dtype=torch.uint8)
    first = -whole.data_ptr() % _HUGE
    with contextlib.suppress(OSError):  # a kernel without huge pages
        reserved.madvise(_ADVICE, first, count)
    return whole[first : first + count]
