"""To a card and back: what is brought there is not waited for, and what comes back is waited for once, when it is read.

A copy from memory that the card can't see for itself waits for everything that runs there; so both ends are pinned.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

__all__ = ["HostCopy", "upload", "upload_bytes"]


def upload(values: Sequence[Any], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Numbers, or equally long rows of them, as a tensor on `device`. The host does not wait."""
    if device.type != "cuda":
        return torch.tensor(values, dtype=dtype).to(device)
    return torch.tensor(values, dtype=dtype, pin_memory=True).to(device, non_blocking=True)


def upload_bytes(rows: Sequence[bytes], device: torch.device) -> torch.Tensor:
    """Equally long rows of bytes as uint8 [rows, bytes] on `device`. The host does not wait."""
    host = torch.frombuffer(bytearray(b"".join(rows)), dtype=torch.uint8).view(len(rows), -1)
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host.to(device)


class HostCopy:
    """A copy of a tensor on its way to the host: `rows` waits for it, and for nothing that was launched after it."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._event: torch.cuda.Event | None = None
        if tensor.device.type != "cuda":
            self._host = tensor
            return
        self._host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        self._host.copy_(tensor, non_blocking=True)
        self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._event.record(torch.cuda.current_stream(tensor.device))

    def rows(self) -> list[list[float]]:
        """What is in it, [rows, columns]."""
        if self._event is not None:
            self._event.synchronize()
        rows: list[list[float]] = self._host.tolist()
        return rows
