"""Gated DeltaNet, the linear attention of hybrids, by delta.c in place of transformers' reference functions.

Modules keep their weights and their products; what lies between these is one call. In bf16 and fp32, on a CPU.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from qserve.model.cpu.build import library

__all__ = ["CDeltaLayer", "DeltaNet", "first_products", "replace_delta_nets"]

# The library's names of the first products, by which of them there are: they differ in the order of their results.
_APART = ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a")
_BY_HEAD = ("in_proj_qkvz", "in_proj_ba")


class _CPart(ctypes.Structure):
    _fields_ = (("first", ctypes.c_int64), ("step", ctypes.c_int64))


_SIZES = ("key_heads", "value_heads", "key_size", "value_size", "taps", "width", "is_bf16")
_PARTS = ("query", "key", "value", "gate", "beta", "decay")
_WEIGHTS = ("conv", "rates", "dt_bias", "norm")


class CDeltaLayer(ctypes.Structure):
    """`delta_layer` of delta.h."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in _SIZES),
        *((name, _CPart) for name in _PARTS),
        *((name, ctypes.c_void_p) for name in _WEIGHTS),
        *((name, ctypes.c_float) for name in ("eps", "unused")),
    )


@dataclass(frozen=True)
class DeltaNet:
    """A module of the library's and what C reads of it.

    Attributes:
        module: of Qwen3-Next, Qwen3.5 or their kin.
        projections: names of its first products; their results lie side by side in a row.
        c: sizes and addresses; they are those of `tensors`.
        tensors: weights in fp32, as C reads them.

    """

    module: Any
    projections: tuple[str, ...]
    c: CDeltaLayer
    tensors: dict[str, torch.Tensor]

    @classmethod
    def of(cls, module: Any) -> DeltaNet | None:
        """None for other modules and dtypes, on other devices than a CPU, under hooks, and without the library."""
        projections = first_products(module)
        if projections is None or not _is_known(module) or library() is None:
            return None
        weights = {
            "conv": module.conv1d.weight.detach()[:, 0].float().t().contiguous(),
            "rates": module.A_log.detach().float().exp(),
            "dt_bias": module.dt_bias.detach().float().contiguous(),
            "norm": module.norm.weight.detach().float().contiguous(),
        }
        is_bf16 = module.conv1d.weight.dtype == torch.bfloat16
        width = sum(getattr(module, name).out_features for name in projections)
        c = CDeltaLayer(
            module.num_k_heads,
            module.num_v_heads,
            module.head_k_dim,
            module.head_v_dim,
            module.conv_kernel_size,
            width,
            int(is_bf16),
            *(_CPart(*one) for one in _parts(module, projections)),
            *(weights[name].data_ptr() for name in _WEIGHTS),
            module.norm.variance_epsilon,
            0.0,
        )
        return cls(module, projections, c, weights)

    @property
    def mixed_width(self) -> int:
        """Of a token: what the module's last product reads."""
        return int(self.c.value_heads * self.c.value_size)

    def mix(self, rows: torch.Tensor, windows: torch.Tensor, states: torch.Tensor, texts: torch.Tensor) -> torch.Tensor:
        """What the module's last product reads, [tokens, value heads · size].

        Args:
            rows: [tokens, width], what the first products gave.
            windows: [rows, channels, taps], the last inputs of the convolution; those of the texts are written.
            states: fp32 [rows, value heads, key size, value size]; those of the texts are written.
            texts: int64 [texts, 4]: the first token, the one behind the last, the row of window and states, and
                whether these hold what came before.

        """
        compiled = library()
        assert compiled is not None, "the library was loaded when it was made"
        out = rows.new_empty(len(rows), self.mixed_width)
        at = [_address(one) for one in (rows, windows, states, texts, out)]
        if compiled.delta_rule(ctypes.byref(self.c), *at[:4], ctypes.c_long(len(texts)), at[4]):
            raise MemoryError(f"linear attention over {len(rows)} tokens")
        return out

    def forward(
        self,
        library_forward: Callable[..., torch.Tensor],
        hidden_states: torch.Tensor,
        cache_params: Any = None,
        attention_mask: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """In place of the module's own, which is asked where gradients or rewinding are wanted."""
        layer = None if cache_params is None else cache_params.layers[self.module.layer_idx]
        is_ours = hidden_states.dtype == self.module.conv1d.weight.dtype and not torch.is_grad_enabled()
        if not is_ours or (layer is not None and layer.record_past):
            return library_forward(hidden_states, cache_params=cache_params, attention_mask=attention_mask, **kwargs)
        if attention_mask is not None:
            hidden_states = (hidden_states * attention_mask[:, :, None]).to(hidden_states.dtype)
        batch, length, _ = hidden_states.shape
        parts = [getattr(self.module, name)(hidden_states) for name in self.projections]
        rows = torch.cat(parts, dim=-1).flatten(0, 1)
        windows, states, has_past = self._memory(layer, batch, rows)
        texts = torch.tensor([[i * length, (i + 1) * length, i, has_past] for i in range(batch)])
        mixed = self.mix(rows, windows, states, texts)
        out: torch.Tensor = self.module.out_proj(mixed.view(batch, length, -1))
        return out

    def _memory(self, layer: Any, batch: int, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, bool]:
        """Windows and states of the library's cache layer, or of nobody; whether they hold what came before."""
        c = self.c
        windows = (batch, 2 * c.key_heads * c.key_size + self.mixed_width, c.taps)
        states = (batch, c.value_heads, c.key_size, c.value_size)
        if layer is None:
            return rows.new_empty(windows), torch.empty(states), False
        if not layer.is_conv_states_initialized[0]:
            layer.lazy_initialization(conv_states=rows.new_zeros(windows))
        if not layer.is_recurrent_states_initialized[0]:
            layer.lazy_initialization(recurrent_states=torch.zeros(states))
        has_past = layer.has_previous_state[0]
        layer.has_previous_state[0] = True
        return layer.conv_states[0], layer.recurrent_states[0], has_past


def first_products(module: Any) -> tuple[str, ...] | None:
    """Names of the products of the states in a module of linear attention, in the order of a row; None: others."""
    return next((names for names in (_APART, _BY_HEAD) if all(hasattr(module, one) for one in names)), None)


def replace_delta_nets(model: Any) -> Callable[[], None]:
    """From now on the modules of `model` that `DeltaNet` takes compute by it; what gives them their own back."""
    nets = [net for net in map(DeltaNet.of, model.modules()) if net is not None and "forward" not in vars(net.module)]
    for net in nets:
        net.module.forward = _replaced(net, net.module.forward)

    def undo() -> None:
        for net in nets:
            vars(net.module).pop("forward", None)

    return undo


def _replaced(net: DeltaNet, library_forward: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def forward(hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return net.forward(library_forward, hidden_states, *args, **kwargs)

    return forward


def _is_known(module: Any) -> bool:
    """Whether it computes as delta.c does."""
    if not type(module).__name__.endswith("GatedDeltaNet"):
        return False
    weights = (module.conv1d.weight, module.A_log, module.dt_bias, module.norm.weight)
    return (
        all(weight.device.type == "cpu" for weight in weights)
        and module.conv1d.weight.dtype in (torch.bfloat16, torch.float32)
        and module.conv1d.bias is None
        and module.activation == "silu"
        and module.num_v_heads % module.num_k_heads == 0
        and not any(hasattr(one, "_hf_hook") for one in module.modules())
    )


def _parts(module: Any, projections: tuple[str, ...]) -> list[tuple[int, int]]:
    """Where in a row each of _PARTS has its first key head, and how far further the next one is."""
    key, num_keys, num_values = module.head_k_dim, module.num_k_heads, module.num_v_heads
    shared = num_values // num_keys
    value = shared * module.head_v_dim
    if projections == _BY_HEAD:
        head, ends = 2 * (key + value), num_keys * 2 * (key + value)
        firsts = (0, key, 2 * key, 2 * key + value)
        return [*((first, head) for first in firsts), (ends, 2 * shared), (ends + shared, 2 * shared)]
    keys, values = num_keys * key, num_keys * value
    gates = 2 * keys + values
    return [
        (0, key),
        (keys, key),
        (2 * keys, value),
        (gates, value),
        (gates + values, shared),
        (gates + values + num_values, shared),
    ]


def _address(tensor: torch.Tensor) -> ctypes.c_void_p:
    assert tensor.is_contiguous(), "the kernel reads rows one after the other"
    return ctypes.c_void_p(tensor.data_ptr())
