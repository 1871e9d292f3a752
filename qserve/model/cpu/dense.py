"""Tokens through the layers of a dense decoder in the order of the library's modules, one operation for their ten.

The library's layers are the ones that compute: their matrices, norms and rotary angles are used as they were loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from qserve.core.families import layer_classes
from qserve.engines.transformers.kernels.shapes import padded_length
from qserve.model.cpu import kernels
from qserve.model.cpu.build import library, why_none
from qserve.model.cpu.layers import CompiledLayers, Reads, are_computed, tell_begin

__all__ = ["Attend", "DenseBody"]

# Experts are computed as the library computes them.
_LAYERS = layer_classes("dense", "experts")

Attend = Callable[[Any, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""A layer's attention module, query [tokens, heads · size], key and value [tokens, kv_heads · size], to mixed values of
query's shape."""


@dataclass(frozen=True)
class DenseBody:
    """What `DenseBody.of` made of a model without its head."""

    body: Any
    layers: CompiledLayers | None = None

    @classmethod
    def of(cls, body: Any) -> DenseBody | None:
        """For a body that is made of such layers and lies in bf16 on a CPU, where there is a compiled library."""
        return cls(body, CompiledLayers.of(body)) if are_computed(body, _LAYERS) and library() is not None else None

    @staticmethod
    def why_not(body: Any) -> str | None:
        """What keeps a body that it would suit from it: half a sentence, or None."""
        return why_none() if are_computed(body, _LAYERS) else None

    def __call__(
        self,
        ids: torch.Tensor,
        positions: torch.Tensor,
        reads: Reads,
        attend: Attend,
        wanted: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Last hidden states [tokens, hidden size] of `ids` [tokens], each of which attends to what `reads` says.

        Where `wanted` has places in the row, only of those, and the last layer goes on with them alone. Rows are
        padded to one of a few counts (`engines/transformers/kernels/shapes.py`) for oneDNN's products; `attend` does
        what `reads` says where the layers are not compiled, and sees the tokens alone.
        """
        if self.layers is not None:
            return self.layers(ids, positions, reads, wanted)
        num_tokens = len(ids)
        if num_more := padded_length(num_tokens) - num_tokens:
            ids, positions = (torch.nn.functional.pad(part, (0, num_more)) for part in (ids, positions))
        states = self.body.embed_tokens(ids)
        cos, sin = (angles[0].contiguous() for angles in self.body.rotary_emb(states[None], positions[None]))
        delta: torch.Tensor | None = None
        for layer in self.body.layers:
            tell_begin(layer)
            normed = _normed(layer.input_layernorm, states, delta)
            mixed = _attention(layer.self_attn, normed, cos, sin, attend, num_tokens)
            if wanted is not None and layer is self.body.layers[-1]:
                states, mixed = states[wanted], mixed[wanted]
            # `states` lack `delta`, what the layer before has to add, until the next norm adds it.
            delta = layer.self_attn.o_proj(mixed)
            delta = _mlp(layer.mlp, _normed(layer.post_attention_layernorm, states, delta))
        last = _normed(self.body.norm, states, delta)
        return last if wanted is not None else last[:num_tokens]


def _attention(
    attention: Any, states: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, attend: Attend, num_tokens: int
) -> torch.Tensor:
    """[rows, heads · head size], before the last product; rows after the first `num_tokens` are zero."""
    query, key, value = attention.q_proj(states), attention.k_proj(states), attention.v_proj(states)
    for part, norm in ((query, getattr(attention, "q_norm", None)), (key, getattr(attention, "k_norm", None))):
        weight, eps = (None, 0.0) if norm is None else (norm.weight, norm.variance_epsilon)
        kernels.norm_and_rotate(part, attention.head_dim, weight, eps, cos, sin)
    mixed = attend(attention, query[:num_tokens], key[:num_tokens], value[:num_tokens])
    return torch.nn.functional.pad(mixed, (0, 0, 0, len(query) - num_tokens)) if len(query) > num_tokens else mixed


def _mlp(mlp: Any, states: torch.Tensor) -> torch.Tensor:
    if not hasattr(mlp, "gate_proj"):
        mixed: torch.Tensor = mlp(states[None])[0]
        return mixed
    gate, up = mlp.gate_proj(states), mlp.up_proj(states)
    kernels.silu_and_multiply(gate, up)
    product: torch.Tensor = mlp.down_proj(gate)
    return product


def _normed(norm: Any, states: torch.Tensor, delta: torch.Tensor | None) -> torch.Tensor:
    return kernels.add_rms_norm(states, delta, norm.weight, norm.variance_epsilon)
