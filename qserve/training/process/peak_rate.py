"""The rate of matrix products that this device reaches, measured: the denominator of a run's MFU."""

from __future__ import annotations

import time
from functools import cache

import torch

__all__ = ["peak_flops_per_s"]

_WIDTH = {"cpu": 1024, "cuda": 8192}
_TRIES = 3


@cache
def peak_flops_per_s(device: str, dtype: torch.dtype) -> float:
    """Of one device, by square products large enough to be bound by arithmetic; the best of a few, after one that
    warms up.
    """
    width = _WIDTH[device]
    left, right = (torch.ones(width, width, dtype=dtype, device=device) for _ in range(2))
    _product_s(left, right)
    taken_s = min(_product_s(left, right) for _ in range(_TRIES))
    if device == "cuda":
        del left, right
        torch.cuda.empty_cache()  # what is measured from here on is the run's own
    return float(2 * width**3 / taken_s)


def _product_s(left: torch.Tensor, right: torch.Tensor) -> float:
    began_s = time.perf_counter()
    torch.mm(left, right)
    if left.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - began_s
