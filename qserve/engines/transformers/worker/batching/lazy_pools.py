"""Zeros that take memory where they are first written, and none before: for pools that are planned for the worst case.

torch.zeros writes all of a tensor, so that a KV pool is resident before there is a request. Pages that the system maps
are zeros anyway, and come one by one.
"""

from __future__ import annotations

import math
import mmap
import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

__all__ = ["LazyPools", "lazy_zeros"]

# Below this the C library may serve a tensor from what it holds already.
_LARGE_BYTES = 1 << 20


def lazy_zeros(shape: Iterable[int], dtype: torch.dtype, device: torch.device | str = "cpu") -> torch.Tensor:
    """torch.zeros, of which in RAM only pages are resident that were written. Raises MemoryError."""
    sizes = tuple(shape)
    num_bytes = math.prod(sizes) * dtype.itemsize
    if torch.device(device).type != "cpu" or sys.platform != "linux" or num_bytes < _LARGE_BYTES:
        return torch.zeros(sizes, dtype=dtype, device=device)
    try:
        pages = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        raise MemoryError(f"you tried to allocate {num_bytes} bytes: {error}") from error
    return torch.frombuffer(pages, dtype=dtype).view(sizes)


class LazyPools(TorchFunctionMode):
    """Within it, what code of a library gets from torch.zeros(num_bytes, dtype=…, device=…) is `lazy_zeros`."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """See `TorchFunctionMode`."""
        given = kwargs or {}
        is_plain = len(args) == 1 and isinstance(args[0], int) and set(given) <= {"dtype", "device"}
        if func is torch.zeros and is_plain and given.get("dtype") is not None:
            return lazy_zeros(args, given["dtype"], given.get("device") or "cpu")
        return func(*args, **given)
