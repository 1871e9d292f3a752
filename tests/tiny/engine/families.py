"""Tiny random models of each kind that the transformers engine serves, in float32."""

from __future__ import annotations

from typing import Any

import torch
from transformers import (
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3_5ForCausalLM,
    Qwen3_5MoeForCausalLM,
    Qwen3_5MoeTextConfig,
    Qwen3_5TextConfig,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
)

VOCABULARY = 1000
_BODY = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "initializer_range": 0.2,
    "max_position_embeddings": 4096,
}
_DENSE = {"intermediate_size": 96}
_LINEAR = {
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
_EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_MROPE = {
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10_000.0,
        "partial_rotary_factor": 0.25,
        "mrope_interleaved": True,
        "mrope_section": [2, 1, 1],
    }
}

DENSE_HYBRID = {**_BODY, **_DENSE, **_LINEAR, **_MROPE}

HYBRIDS = ("qwen3.5", "qwen3.5-moe", "qwen3-next")


def build(family: str, num_layers: int = 4, expert_width: int = 32, inner: int = 96, hidden: int = 64) -> Any:
    """A model of `family`, the same at every call; of a hybrid's layers the last has full attention."""
    torch.manual_seed(11)
    experts = {**_EXPERTS, "moe_intermediate_size": expert_width}
    shared = {**experts, "shared_expert_intermediate_size": 32}
    body = {**_BODY, "num_hidden_layers": num_layers}
    hybrid = {**_LINEAR, "full_attention_interval": num_layers}
    dense = {**_BODY, "intermediate_size": inner, "hidden_size": hidden, "num_hidden_layers": num_layers}
    match family:
        case "qwen3":
            model = Qwen3ForCausalLM(Qwen3Config(**dense))
        case "qwen2":  # biases of q, k and v, no norms of heads
            model = Qwen2ForCausalLM(Qwen2Config(**dense))
        case "qwen3-moe":
            model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**body, **_DENSE, **experts))
        case "qwen3.5":
            model = Qwen3_5ForCausalLM(Qwen3_5TextConfig(**{**DENSE_HYBRID, **body, **hybrid}))
        case "qwen3.5-moe":
            model = Qwen3_5MoeForCausalLM(Qwen3_5MoeTextConfig(**body, **hybrid, **_MROPE, **shared))
        case "qwen3-next":
            model = Qwen3NextForCausalLM(Qwen3NextConfig(**body, **_DENSE, **hybrid, **shared))
        case _:
            raise ValueError(family)
    return model.float().eval()
