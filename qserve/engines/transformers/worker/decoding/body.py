"""A dense decoder's layers in a decoding step: products, attention, and three operations for all that stands between.

The library's layers are the ones that compute: their matrices, norms and rotary angles are used as they were loaded.
A layer is ten launches, where weights are fused (`fused`) and attention takes two, and the library's modules make 56.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from qserve.core.families import layer_classes
from qserve.engines.transformers.worker.attention.pages import PageStep
from qserve.engines.transformers.worker.decoding.fused import GATE_UP, QKV, products
from qserve.engines.transformers.worker.decoding.operations import add_rms_norm, rotate_and_store, silu_and_multiply

__all__ = ["DenseSteps"]

_LAYERS = layer_classes("dense")


@dataclass(frozen=True)
class DenseSteps:
    """What `of` made of a model whose layers are such and lie on one device."""

    model: Any

    @classmethod
    def of(cls, model: Any) -> DenseSteps | None:
        """For a model that it can run as the library runs it; else None."""
        body = model.get_decoder()
        layers = getattr(body, "layers", ())
        if not layers or any(type(layer).__name__ not in _LAYERS for layer in layers):
            return None
        if getattr(body.config, "hidden_act", "silu") != "silu" or any(hasattr(m, "_hf_hook") for m in body.modules()):
            return None
        devices = {state.device for state in (*model.parameters(), *model.buffers())}
        return cls(model) if len(devices) == 1 else None

    def __call__(self, ids: torch.Tensor, positions: torch.Tensor, step: PageStep, cache: Any) -> torch.Tensor:
        """Logits [tokens, vocab] of `ids` [tokens], one of each sequence."""
        body = self.model.get_decoder()
        states = body.embed_tokens(ids)
        cos, sin = (angles[0].contiguous() for angles in body.rotary_emb(states[None], positions[None]))
        delta: torch.Tensor | None = None
        for layer in body.layers:
            for hook in layer._forward_pre_hooks.values():  # signs of progress (`batching/progress.py`)
                hook(layer, ())
            # `states` lack `delta`, what the layer before has to add, until the next norm adds it.
            normed = add_rms_norm(states, delta, *_norm_of(layer.input_layernorm))
            delta = _attention(layer.self_attn, normed, (cos, sin), step, cache)
            normed = add_rms_norm(states, delta, *_norm_of(layer.post_attention_layernorm))
            mlp = layer.mlp
            delta = mlp.down_proj(silu_and_multiply(*products(mlp, GATE_UP, normed)))
        logits: torch.Tensor = self.model.get_output_embeddings()(add_rms_norm(states, delta, *_norm_of(body.norm)))
        return logits


def _norm_of(norm: Any) -> tuple[torch.Tensor, float]:
    return norm.weight, norm.variance_epsilon


def _attention(
    attention: Any, states: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor], step: PageStep, cache: Any
) -> torch.Tensor:
    size, layer_idx = attention.head_dim, attention.layer_idx
    query, key, value = (part.view(len(states), -1, size) for part in products(attention, QKV, states))
    query_norm, key_norm = getattr(attention, "q_norm", None), getattr(attention, "k_norm", None)
    norms = (
        None if query_norm is None else query_norm.weight,
        None if key_norm is None else key_norm.weight,
        0.0 if query_norm is None else query_norm.variance_epsilon,
    )
    pages = cache.layer_to_allocator[layer_idx].get_cache_for_block_table(layer_idx)
    rotate_and_store(query, key, value, norms, angles, pages, step.write_index)
    mixed: torch.Tensor = attention.o_proj(step.kernel(query, pages[0], pages[1], step, attention.scaling).flatten(1))
    return mixed
