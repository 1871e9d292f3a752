"""The paged KV cache of a model whose layers lie on several devices: every layer's pages on that layer's device.

transformers' continuous batching keeps the pages of all layers in one tensor, on the device of the first parameter; a
layer on another card would write its keys there and fail. Here each device gets a tensor with the pages of its own
layers, and the positions that the library computes for the one tensor are brought to it. Scheduling, page tables and
shared prefixes stay the library's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from transformers.generation.continuous_batching import continuous_api
from transformers.generation.continuous_batching.cache import PagedAttentionCache

from qserve.engines.transformers.worker.attention.step import IdentityCache
from qserve.engines.transformers.worker.batching.lazy_pools import lazy_zeros
from qserve.errors import UsageError

__all__ = ["LayerPlacedCache", "layer_devices", "placed_by_layer"]


def layer_devices(model: Any) -> list[torch.device]:
    """Where each decoder layer computes: by accelerate's hook where there is one, as weights may lie elsewhere."""
    layers = model.get_decoder().layers
    return [_execution_device(layer) for layer in layers]


def _execution_device(layer: torch.nn.Module) -> torch.device:
    hook: Any = getattr(layer, "_hf_hook", None)
    device = getattr(hook, "execution_device", None)
    if device is None:
        return next(parameter.device for parameter in layer.parameters())
    return torch.device("cuda", device) if isinstance(device, int) else torch.device(device)


@contextlib.contextmanager
def placed_by_layer(model: Any) -> Iterator[None]:
    """While the library makes its cache: for a model on one device its own, else one that lies with the layers."""
    devices = layer_devices(model)
    if set(devices) == {model.device}:
        yield
        return
    model.get_decoder().register_forward_hook(partial(_bring_back, model.device))
    original = continuous_api.PagedAttentionCache
    continuous_api.PagedAttentionCache = lambda **arguments: LayerPlacedCache(devices, **arguments)
    try:
        yield
    finally:
        continuous_api.PagedAttentionCache = original


def _bring_back(device: torch.device, module: torch.nn.Module, args: Any, output: Any) -> Any:
    """The library picks the hidden states that become logits by an index on the first device; they end on the last."""
    output.last_hidden_state = output.last_hidden_state.to(device)
    return output


class LayerPlacedCache(PagedAttentionCache):  # type: ignore[misc]  # transformers is untyped
    """The library's cache, with its memory split by device. Block tables (flash-attn's decoding) are not for it."""

    def __init__(self, devices: list[torch.device], *, device: torch.device, **arguments: Any) -> None:
        # On "meta" the one tensor takes no memory; its shapes and block tables are right all the same.
        super().__init__(device=torch.device("meta"), **arguments)
        if len(self.cache_allocators) > 1:  # they share the one tensor, page by page; split, each would need all of it
            raise UsageError(
                f"layers of {' and '.join(self.cache_allocators)} can't be split over several devices, since they "
                "share one KV pool; put the model on one card, or serve it with --engine vllm"
            )
        self.device = device
        self.max_decode_fast_path_length = self.max_blocks_per_request = 0
        for allocator in self.cache_allocators.values():
            _split(allocator, devices)


def _split(allocator: Any, devices: list[torch.device]) -> None:
    """Give each layer of `allocator` views into a tensor on its device, and an update that reads them."""
    page, stride = allocator.tokens_per_page, allocator.block_physical_stride
    num_blocks = allocator.cache_tensor.shape[0] * 2 // stride  # the two sectors that nobody owns included
    local_strides: dict[int, int] = {}
    for device in dict.fromkeys(devices):
        own = [layer for layer in allocator.layer_indices if devices[layer] == device]
        local = 2 * page * len(own)
        shape = (num_blocks * local, allocator.num_key_value_heads, allocator.head_dim)
        memory = lazy_zeros(shape, allocator.cache_dtype, device) if own else None
        for index, layer in enumerate(own):
            assert memory is not None
            allocator._kv_token_views[layer] = (memory[2 * index * page :], memory[(2 * index + 1) * page :])
            local_strides[layer] = local
    allocator.update = _updating(allocator.update, stride, local_strides, len(set(devices)))


def _updating(
    update: Callable[..., Any], stride: int, local_strides: dict[int, int], num_devices: int
) -> Callable[..., Any]:
    # Layers of a device get the same two tensors, and move their positions alike.
    moved = {local: IdentityCache(2 * num_devices) for local in local_strides.values()}

    def updated(
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        layer_idx: int,
        read_index: torch.Tensor,
        write_index: torch.Tensor,
    ) -> Any:
        local = local_strides[layer_idx]
        read = moved[local].of((read_index,), lambda: _moved(read_index, stride, local))
        write = moved[local].of((write_index,), lambda: _moved(write_index, stride, local))
        return update(key_states, value_states, layer_idx, read, write)

    return updated


def _moved(positions: torch.Tensor, stride: int, local_stride: int) -> torch.Tensor:
    """Positions in the one tensor, whose blocks are `stride` apart, in one whose blocks are `local_stride` apart.

    A position is a block and a token of its first page: less than a page behind the block's begin.
    """
    block = positions.div(stride, rounding_mode="floor")
    return block * local_stride + (positions - block * stride)
