"""Seconds and peak memory of loading, as the kernel and the card's allocator tell them."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

__all__ = ["LoadCost", "LoadMeter", "reset_peaks", "resident_bytes"]

# Writing this makes the kernel forget the high-water mark of resident memory (man 5 proc).
_FORGET_PEAK = "5"


@dataclass(frozen=True)
class LoadCost:
    """What loading took: resident memory, beyond the `before_bytes` that the process held when it began.

    `peak_bytes` is the highest, pages of mapped files included; `kept_bytes` what is left of it afterwards.
    `card_peak_bytes` is the allocator's, over all cards.
    """

    seconds: float = 0.0
    before_bytes: int = 0
    peak_bytes: int = 0
    kept_bytes: int = 0
    card_peak_bytes: int = 0


class LoadMeter:
    """Begins to measure when it is made."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()
        reset_peaks()
        self._before = resident_bytes()

    def read(self, model: Any) -> LoadCost:
        """The cost so far; `model` is what was loaded."""
        cards = {parameter.device.index for parameter in model.parameters() if parameter.device.type == "cuda"}
        return LoadCost(
            seconds=time.monotonic() - self._began_s,
            before_bytes=self._before,
            peak_bytes=max(0, resident_bytes("VmHWM") - self._before),
            kept_bytes=max(0, resident_bytes() - self._before),
            card_peak_bytes=sum(torch.cuda.max_memory_allocated(index) for index in cards),
        )


def resident_bytes(field: str = "VmRSS") -> int:
    """`VmRSS` (now) or `VmHWM` (highest since the last reset) of this process, from /proc/self/status."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    return 0


def reset_peaks() -> None:
    """Make the high-water marks start anew from what is held now: the kernel's, and the allocator's of every card."""
    # Where the kernel does not let us, the mark stays what it was: too high, never too low.
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text(_FORGET_PEAK)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        for index in range(torch.cuda.device_count()):
            torch.cuda.reset_peak_memory_stats(index)
