"""The parts of a model that only some have: experts, linear attention, a vision encoder, a scoring head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Head", "LinearAttention", "MixtureOfExperts", "VisionEncoder", "VisionKind"]

VisionKind = Literal["qwen2_vl", "qwen2_5_vl", "qwen3_vl"]


@dataclass(frozen=True)
class MixtureOfExperts:
    """Experts of a sparse layer. `sparse_layers` are the layers that have them; the others have a dense MLP."""

    num_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int
    shared_expert_intermediate_size: int
    sparse_layers: int


@dataclass(frozen=True)
class LinearAttention:
    """Gated DeltaNet: a fixed state per sequence in place of a KV cache."""

    num_key_heads: int
    num_value_heads: int
    key_head_dim: int
    value_head_dim: int
    conv_kernel_dim: int
    state_dtype: str | None
    """`mamba_ssm_dtype` of the config; None: the engine's default (vLLM: the model's dtype)."""

    @property
    def conv_dim(self) -> int:
        """Channels of the short convolution: q and k of every key head, v of every value head."""
        return 2 * self.num_key_heads * self.key_head_dim + self.num_value_heads * self.value_head_dim

    @property
    def value_dim(self) -> int:
        return self.num_value_heads * self.value_head_dim


@dataclass(frozen=True)
class VisionEncoder:
    """A vision tower. `kind` is its code's: Qwen3.5 and later have Qwen3-VL's. `num_position_embeddings` may be 0."""

    depth: int
    hidden_size: int
    intermediate_size: int
    out_hidden_size: int
    patch_size: int
    temporal_patch_size: int
    spatial_merge_size: int
    num_position_embeddings: int
    deepstack_layers: int
    in_channels: int = 3
    kind: VisionKind = "qwen3_vl"

    @property
    def is_gated(self) -> bool:
        """Whether its MLP has gate, up and down, and its norms no bias."""
        return self.kind == "qwen2_5_vl"


@dataclass(frozen=True)
class Head:
    """What sits on the body: a language-model head, or a scoring one (`hidden_layers` linear layers below it)."""

    kind: Literal["lm", "score"]
    num_labels: int = 0
    hidden_layers: int = 0
