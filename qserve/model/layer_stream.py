"""Layers in RAM beside a card, each copied there while the one before it computes.

accelerate brings the weights of every module when it is called: the card waits for each copy, and the bus for each
product. Here a layer's weights are a few pieces of pinned memory, and there are two buffers on the card: while a layer
computes in one, the next layer is copied to the other, on a stream of its own. Events order the two streams, so the
host waits for nothing, and a step takes the longer of computing and copying in place of their sum.

torch pins memory in powers of two, whatever was asked for: a layer of 0.97 GB would take 1.07 GB, all layers in one
block up to twice their size. So a layer is cut into pieces that are powers of two, of 1 MiB and more, and wastes less
than 1 MiB. (Newer releases of torch have pinned_max_round_threshold_mb of PYTORCH_ALLOC_CONF, for a whole process.)
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import nn

from qserve.core.offload import NUM_BUFFERS, are_streamed
from qserve.engines.transformers.kernels.compiler_errors import reason_of
from qserve.units import MIB, format_bytes

__all__ = ["Lane", "LayerStream", "is_streamed", "stream_offloaded"]

_log = logging.getLogger("qserve.worker")
_ALIGNMENT = 256
_LEAST_PIECE_BYTES = MIB


class Lane(Protocol):
    """Copies to the buffers of a card, beside what is computed there."""

    def copy(self, pieces: Sequence[torch.Tensor], target: torch.Tensor, buffer: int) -> None:
        """Launch copies of `pieces` to `target`, end to end; the host does not wait.

        They begin when all that was launched to compute so far has ended.
        """

    def wait(self, buffer: int) -> None:
        """What is launched to compute from now on begins when the last copy to `buffer` has ended."""


class _CardLane:
    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._launched = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._arrived = [torch.cuda.Event() for _ in range(NUM_BUFFERS)]  # type: ignore[no-untyped-call]

    def copy(self, pieces: Sequence[torch.Tensor], target: torch.Tensor, buffer: int) -> None:
        """See `Lane`."""
        self._launched.record(torch.cuda.current_stream(self._device))
        self._stream.wait_event(self._launched)
        with torch.cuda.stream(self._stream):
            _copy(pieces, target)
            self._arrived[buffer].record(self._stream)

    def wait(self, buffer: int) -> None:
        """See `Lane`."""
        torch.cuda.current_stream(self._device).wait_event(self._arrived[buffer])


class _HostLane:
    """Of a CPU, which computes one thing after another."""

    def copy(self, pieces: Sequence[torch.Tensor], target: torch.Tensor, buffer: int) -> None:
        """See `Lane`."""
        _copy(pieces, target)

    def wait(self, buffer: int) -> None:
        """See `Lane`."""


def _copy(pieces: Sequence[torch.Tensor], target: torch.Tensor) -> None:
    start = 0
    for piece in pieces:
        target[start : start + len(piece)].copy_(piece, non_blocking=True)
        start += len(piece)


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
        self._why_not_pinned = ""
        self._pointing: list[int | None] = [None] * len(self._layers)
        self._held: list[list[torch.Tensor]] = []
        for index, layer in enumerate(self._layers):
            self._held.append(self._taken(layer))
            self._point(index, index % len(self._buffers))  # gives back what was taken
        if not self.is_pinned:
            _log.warning("%s", self.sentence)
        self.num_copies = 0
        for index, layer in enumerate(self._layers):
            layer.register_forward_pre_hook(partial(self._before, index))

    def __del__(self) -> None:
        """Gives pinned memory back to the system; torch would keep it for who pins next."""
        self.__dict__.pop("_held", None)
        if not sys.is_finalizing() and any(one.device.type == "cuda" for one in self.__dict__.get("_buffers", ())):
            _empty_host_cache()

    @property
    def is_pinned(self) -> bool:
        """Whether the card reads all of them while it computes; without a card, nobody asks."""
        return not self._why_not_pinned

    @property
    def held_bytes(self) -> int:
        """In RAM, with what is left over of the last piece of each layer."""
        return sum(piece.untyped_storage().nbytes() for pieces in self._held for piece in pieces)

    @property
    def sentence(self) -> str:
        """For the user."""
        lying = f"{len(self._held)} layers ({format_bytes(self.held_bytes)}) are in RAM"
        if self.is_pinned:
            return f"{lying}, pinned: each is copied to the card while the one before computes"
        return f"{lying} and can't be pinned ({self._why_not_pinned}): the card waits for each copy"

    def _taken(self, layer: nn.Module) -> list[torch.Tensor]:
        """The parameters of `layer` in a few pieces, pinned for a card."""
        pieces = [self._piece(size) for size in _piece_sizes(self._parts[-1].end)]
        pieces[-1] = pieces[-1][: self._parts[-1].end - sum(map(len, pieces[:-1]))]
        for part in self._parts:
            _write(layer.get_parameter(part.name).data.contiguous().view(-1).view(torch.uint8), part.start, pieces)
        return pieces

    def _piece(self, size: int) -> torch.Tensor:
        """Pinned, until that fails once: then a card would wait for the copy anyhow."""
        if self._buffers[0].device.type == "cuda" and self.is_pinned:
            try:
                return torch.empty(size, dtype=torch.uint8, pin_memory=True)
            except RuntimeError as error:  # torch has taken CUDA's error back: the next launch does not meet it
                self._why_not_pinned = reason_of(error)
        return torch.empty(size, dtype=torch.uint8)

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


def _piece_sizes(num_bytes: int) -> list[int]:
    """Powers of two, the largest first, that have room for `num_bytes` and less than the least of them to spare."""
    units = -(-num_bytes // _LEAST_PIECE_BYTES)
    return [_LEAST_PIECE_BYTES << bit for bit in reversed(range(units.bit_length())) if units >> bit & 1]


def _write(values: torch.Tensor, start: int, pieces: Sequence[torch.Tensor]) -> None:
    """`values`, bytes, to their place from `start` on in `pieces` that lie end to end."""
    for piece in pieces:
        begin, end = max(0, start), min(len(piece), start + len(values))
        if begin < end:
            piece[begin:end].copy_(values[begin - start : end - start])
        start -= len(piece)


def _empty_host_cache() -> None:
    if hasattr(torch.accelerator, "empty_host_cache"):
        torch.accelerator.empty_host_cache()
    else:  # before torch 2.12
        torch._C._host_emptyCache()


def is_streamed(layer: nn.Module) -> bool:
    """Whether the parameters of `layer` are brought, and lie elsewhere in every other forward."""
    hooks = (getattr(hook, "func", None) for hook in layer._forward_pre_hooks.values())
    return any(getattr(hook, "__func__", None) is LayerStream._before for hook in hooks)


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
