"""A row through the layers of a dense decoder in the order of the library's modules, one operation for their ten.

The library's layers are the ones that compute: their matrices, norms and rotary angles are used as they were loaded.
The last layer goes on only with the tokens that somebody reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from qserve.reward.attention import RowLayout, stretches_sdpa
from qserve.reward.cpu import kernels
from qserve.reward.cpu.build import library, why_none

__all__ = ["RowPass"]

# Layers made of these parts: pre-norm, half-rotated q and k (normed or not), SiLU between gate and up, no more.
_LAYERS = frozenset({"LlamaDecoderLayer", "MistralDecoderLayer", "Qwen2DecoderLayer", "Qwen3DecoderLayer"})


@dataclass(frozen=True)
class RowPass:
    """What `RowPass.of` made of a body."""

    body: Any

    @classmethod
    def of(cls, body: Any) -> RowPass | None:
        """For a body that is made of such layers and lies in bf16 on a CPU, where there is a compiled library."""
        return cls(body) if _suits(body) and library() is not None else None

    @staticmethod
    def why_not(body: Any) -> str | None:
        """What keeps a body that it would suit from it, for people."""
        why = why_none() if _suits(body) else None
        return why and f"rows are computed by torch's own operations, at about half of the speed: {why}"

    def __call__(
        self, ids: torch.Tensor, positions: torch.Tensor, layout: RowLayout, wanted: torch.Tensor
    ) -> torch.Tensor:
        """Last hidden states [wanted, hidden size] of the row `ids` [tokens]. `wanted` are places in it."""
        states = self.body.embed_tokens(ids)
        cos, sin = (angles[0].contiguous() for angles in self.body.rotary_emb(states[None], positions[None]))
        stretches = kernels.stretches_of(layout)
        delta: torch.Tensor | None = None
        for layer in self.body.layers:
            states, delta = self._layer(layer, states, delta, (cos, sin), (layout, stretches), wanted)
        return _normed(self.body.norm, states, delta)

    def _layer(
        self,
        layer: Any,
        states: torch.Tensor,
        delta: torch.Tensor | None,
        angles: tuple[torch.Tensor, torch.Tensor],
        row: tuple[RowLayout, torch.Tensor],
        wanted: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """`states` lack `delta`, what the layer before has to add; and so do those that are returned."""
        mixed = _attention(layer.self_attn, _normed(layer.input_layernorm, states, delta), angles, row)
        if layer is self.body.layers[-1]:
            states, mixed = states[wanted], mixed[wanted]
        return states, _mlp(layer.mlp, _normed(layer.post_attention_layernorm, states, layer.self_attn.o_proj(mixed)))


def _suits(body: Any) -> bool:
    layers = getattr(body, "layers", ())
    if not layers or any(type(layer).__name__ not in _LAYERS for layer in layers):
        return False
    if getattr(body.config, "hidden_act", "silu") != "silu" or any(hasattr(m, "_hf_hook") for m in body.modules()):
        return False
    on_cpu = all(state.device.type == "cpu" for state in (*body.parameters(), *body.buffers()))
    return on_cpu and all(layer.input_layernorm.weight.dtype == torch.bfloat16 for layer in layers)


def _attention(
    attention: Any,
    states: torch.Tensor,
    angles: tuple[torch.Tensor, torch.Tensor],
    row: tuple[RowLayout, torch.Tensor],
) -> torch.Tensor:
    """[tokens, heads · head size], before the last product."""
    query, key, value = attention.q_proj(states), attention.k_proj(states), attention.v_proj(states)
    size = attention.head_dim
    for part, norm in ((query, getattr(attention, "q_norm", None)), (key, getattr(attention, "k_norm", None))):
        weight, eps = (None, 0.0) if norm is None else (norm.weight, norm.variance_epsilon)
        kernels.norm_and_rotate(part, size, weight, eps, *angles)
    layout, stretches = row
    if kernels.can_attend(size):
        return kernels.attend(query, key, value, size, attention.scaling, stretches)
    q, k, v = (part.view(1, len(part), -1, size).transpose(1, 2) for part in (query, key, value))
    return stretches_sdpa(attention, q, k, v, None, attention.scaling, layout=layout)[0].flatten(2)[0]


def _mlp(mlp: Any, states: torch.Tensor) -> torch.Tensor:
    gate, up = mlp.gate_proj(states), mlp.up_proj(states)
    kernels.silu_and_multiply(gate, up)
    product: torch.Tensor = mlp.down_proj(gate)
    return product


def _normed(norm: Any, states: torch.Tensor, delta: torch.Tensor | None) -> torch.Tensor:
    return kernels.add_rms_norm(states, delta, norm.weight, norm.variance_epsilon)
