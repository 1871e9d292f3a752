"""Layers in RAM beside a card, each copied there while the one before it computes.

accelerate brings the weights of every module when it is called: the card waits for each copy, and the bus for each
product. Here a layer's weights are one piece of pinned memory, and there are two buffers on the card: while a layer
computes in one, the next layer is copied to the other, on a stream of its own. Events order the two streams, so the
host waits for nothing, and a step takes the longer of computing and copying in place of their sum.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import nn

from qserve.core.offload import NUM_BUFFERS, are_streamed
from qserve.units import format_bytes

__all__ = ["Lane", "LayerStream", "stream_offloaded"]

_log = logging.getLogger("qserve.worker")
_ALIGNMENT = 256


class Lane(Protocol):
    """Copies to the buffers of a card, beside what is computed there."""

    def copy(self, source: torch.Tensor, target: torch.Tensor, buffer: int) -> None:
        """Launch it: it begins when all that was launched to compute so far has ended. The host does not wait."""

    def wait(self, buffer: int) -> None:
        """What is launched to compute from now on begins when the last copy to `buffer` has ended."""


class _CardLane:
    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._launched = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._arrived = [torch.cuda.Event() for _ in range(NUM_BUFFERS)]  # type: ignore[no-untyped-call]

    def copy(self, source: torch.Tensor, target: torch.Tensor, buffer: int) -> None:
        """See `Lane`."""
        self._launched.record(torch.cuda.current_stream(self._device))
        self._stream.wait_event(self._launched)
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)
            self._arrived[buffer].record(self._stream)

    def wait(self, buffer: int) -> None:
        """See `Lane`."""
        torch.cuda.current_stream(self._device).wait_event(self._arrived[buffer])


class _HostLane:
    """Of a CPU, which computes one thing after another."""

    def copy(self, source: torch.Tensor, target: torch.Tensor, buffer: int) -> None:
        """See `Lane`."""
        target.copy_(source)

    def wait(self, buffer: int) -> None:
        """See `Lane`."""


@dataclass(frozen=True)
class _Part:
    """Where a parameter lies in the bytes of its layer."""

    name: str
    shape: torch.Size
    dtype: torch.dtype
    start: int
    end: int

    def of(self, whole: torch.Tensor) -> torch.Tensor:
        """The parameter as a view of `whole`."""
        return whole[self.start : self.end].view(self.dtype).view(self.shape)


class LayerStream:
    """Weights of layers that are alike, in RAM; belongs to whoever runs the model, one forward at a time.

    Attributes:
        num_copies: of layers, to the card, so far.
        is_pinned: whether the card reads them while it computes; without a card, nobody asks.
    """

    def __init__(self, layers: Sequence[nn.Module], device: torch.device, lane: Lane | None = None) -> None:
        """Takes the parameters of `layers`, in the order in which a forward runs these, over to `device`.

        Raises ValueError for layers that are not alike.
        """
        self._layers = list(layers)
        self._parts = _parts_of(self._layers[0])
        if any(_parts_of(layer) != self._parts for layer in self._layers):
            raise ValueError("layers in RAM differ in shape, so one buffer does not fit all")
        self._lane: Lane = lane or (_CardLane(device) if device.type == "cuda" else _HostLane())
        size = self._parts[-1].end
        self._buffers = [
            torch.empty(size, dtype=torch.uint8, device=device) for _ in range(min(NUM_BUFFERS, len(self._layers)))
        ]
        self._in_buffer: list[int | None] = [None] * len(self._buffers)
        self._views = [[part.of(buffer) for part in self._parts] for buffer in self._buffers]
        self.is_pinned = True
        self._held = [self._taken(layer) for layer in self._layers]
        if not self.is_pinned:
            _log.warning("%s", self.sentence)
        self._pointing: list[int | None] = [None] * len(self._layers)
        self.num_copies = 0
        for index, layer in enumerate(self._layers):
            self._point(index, index % len(self._buffers))
            layer.register_forward_pre_hook(partial(self._before, index))

    @property
    def held_bytes(self) -> int:
        """In RAM."""
        return sum(one.nbytes for one in self._held)

    @property
    def sentence(self) -> str:
        """For the user."""
        lying = f"{len(self._held)} layers ({format_bytes(self.held_bytes)}) are in RAM"
        if self.is_pinned:
            return f"{lying}, pinned: each is copied to the card while the one before computes"
        return f"{lying} and can't be pinned (see ulimit -l): the card waits for each copy"

    def _taken(self, layer: nn.Module) -> torch.Tensor:
        """The parameters of `layer` in one piece, pinned for a card."""
        whole = torch.empty(self._parts[-1].end, dtype=torch.uint8)
        for part in self._parts:
            part.of(whole).copy_(layer.get_parameter(part.name).data)
        if self._buffers[0].device.type == "cuda":
            # Registered where it lies: torch's own pinned memory comes in powers of two.
            runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
            self.is_pinned &= int(runtime.cudaHostRegister(whole.data_ptr(), whole.nbytes, 0)) == 0
        return whole

    def _before(self, index: int, layer: nn.Module, args: Any) -> None:
        """`index` is about to compute: it waits for its own weights, and those of the next one are sent."""
        if index not in self._in_buffer:  # the first forward, or one after another that was broken off
            self._send(index, index % len(self._buffers))
        buffer = self._in_buffer.index(index)
        following = (index + 1) % len(self._layers)
        if following not in self._in_buffer:
            self._send(following, 1 - buffer)
        self._lane.wait(buffer)
        self._point(index, buffer)

    def _send(self, index: int, buffer: int) -> None:
        self._in_buffer[buffer] = index
        self._lane.copy(self._held[index], self._buffers[buffer], buffer)
        self.num_copies += 1

    def _point(self, index: int, buffer: int) -> None:
        """The layer's parameters are those in `buffer`; of an odd number of layers they change places every time."""
        if self._pointing[index] == buffer:
            return
        self._pointing[index] = buffer
        layer = self._layers[index]
        for part, view in zip(self._parts, self._views[buffer], strict=True):
            layer.get_parameter(part.name).data = view


def _parts_of(layer: nn.Module) -> list[_Part]:
    parts, start = [], 0
    for name, parameter in layer.named_parameters():
        parts.append(_Part(name, parameter.shape, parameter.dtype, start, start + parameter.nbytes))
        start += -(-parameter.nbytes // _ALIGNMENT) * _ALIGNMENT
    return parts


def stream_offloaded(model: Any) -> LayerStream | None:
    """Takes the place of accelerate's hooks where layers lie in RAM beside one card; else None, and nothing changes."""
    found: dict[str, Any] = getattr(model, "hf_device_map", None) or {}
    placed = {name: place if isinstance(place, int) else str(place) for name, place in found.items()}
    bits = 8 if getattr(model, "is_quantized", False) else 16
    if not are_streamed(type(model).__name__, bits, placed.values()):
        return None
    layers = [module for name, module in model.named_modules() if placed.get(name) == "cpu"]
    if not all(any(module is layer for layer in model.get_decoder().layers) for module in layers):
        return None  # an embedding or a head in RAM
    from accelerate.hooks import remove_hook_from_module

    remove_hook_from_module(model, recurse=True)
    device = torch.device(next(place for place in placed.values() if place != "cpu"))
    return LayerStream(layers, device)
