"""Parts of a config.json that only some families have, and its numbers with their bounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from qserve.core.model_parts import LinearAttention, MixtureOfExperts, VisionEncoder
from qserve.core.tensors import DTYPE_BYTES
from qserve.errors import BrokenCheckpoint

__all__ = ["Sizes", "read_experts", "read_linear_attention", "read_vision"]

# Above what any model has, and below what costs time: these are counted one by one. Llama 405B has 126 layers.
_MOST = {"num_hidden_layers": 1000, "depth": 1000, "mtp_num_hidden_layers": 1000}
_MOST_OF_ANY = (1 << 31) - 1


@dataclass(frozen=True)
class Sizes:
    """The numbers of one mapping of a config; `where` names it in messages. Raises BrokenCheckpoint."""

    values: Mapping[str, Any]
    where: str

    def __call__(self, key: str, default: int | None = None, least: int = 1) -> int:
        """The whole number under `key`."""
        value = self.values.get(key)
        if value is None:
            value = default
        most = _MOST.get(key, _MOST_OF_ANY)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            bound = f"from {least} to {most}" if isinstance(value, int) and value > most else f"from {least} on"
            raise BrokenCheckpoint(
                f"{self.where}: {key} is {_shown(self.values.get(key))}, but must be a whole number {bound}; "
                "config.json is damaged or of a model that is not a decoder. Download it again"
            )
        return value

    def known_dtype(self, key: str, value: Any) -> str | None:
        """A dtype's name as torch has it; None where nothing is named."""
        name = None if value is None else str(value).removeprefix("torch.")
        if name is not None and name not in DTYPE_BYTES:
            raise BrokenCheckpoint(f"{self.where}: {key} is {value!r}; known are {', '.join(DTYPE_BYTES)}")
        return name


def read_experts(sizes: Sizes, num_layers: int) -> MixtureOfExperts:
    """Of a family that has experts in its layers."""
    # transformers 5 writes Qwen3-MoE's count under Mixtral's name.
    key = "num_local_experts" if sizes.values.get("num_local_experts") else "num_experts"
    step = sizes("decoder_sparse_step", 1)
    dense = set(sizes.values.get("mlp_only_layers") or ())
    return MixtureOfExperts(
        num_experts=sizes(key),
        num_experts_per_tok=sizes("num_experts_per_tok"),
        moe_intermediate_size=sizes("moe_intermediate_size"),
        shared_expert_intermediate_size=sizes("shared_expert_intermediate_size", 0, least=0),
        sparse_layers=sum((i + 1) % step == 0 and i not in dense for i in range(num_layers)),
    )


def read_linear_attention(sizes: Sizes) -> LinearAttention:
    """Of a family with layers of linear attention."""
    return LinearAttention(
        num_key_heads=sizes("linear_num_key_heads", 16),
        num_value_heads=sizes("linear_num_value_heads", 32),
        key_head_dim=sizes("linear_key_head_dim", 128),
        value_head_dim=sizes("linear_value_head_dim", 128),
        conv_kernel_dim=sizes("linear_conv_kernel_dim", 4),
        state_dtype=sizes.known_dtype("mamba_ssm_dtype", sizes.values.get("mamba_ssm_dtype")),
    )


def read_vision(sizes: Sizes, family: str, text_hidden_size: int) -> VisionEncoder:
    """Of a config's `vision_config`."""
    if family in ("qwen2_vl", "qwen2_5_vl"):
        kind: Literal["qwen2_vl", "qwen2_5_vl"] = "qwen2_vl" if family == "qwen2_vl" else "qwen2_5_vl"
        return _early_vision(sizes, kind, text_hidden_size)
    # Only Qwen3-VL feeds features of inner layers to the language model; later configs still name the key.
    deepstack = sizes.values.get("deepstack_visual_indexes", [8, 16, 24]) if family.startswith("qwen3_vl") else ()
    return VisionEncoder(
        depth=sizes("depth", 27),
        hidden_size=sizes("hidden_size", 1152),
        intermediate_size=sizes("intermediate_size", 4304),
        out_hidden_size=sizes("out_hidden_size", text_hidden_size),
        patch_size=sizes("patch_size", 16),
        temporal_patch_size=sizes("temporal_patch_size", 2),
        spatial_merge_size=sizes("spatial_merge_size", 2),
        num_position_embeddings=sizes("num_position_embeddings", 2304),
        deepstack_layers=len(deepstack),
    )


def _early_vision(sizes: Sizes, kind: Literal["qwen2_vl", "qwen2_5_vl"], text_hidden_size: int) -> VisionEncoder:
    """Qwen2-VL's and Qwen2.5-VL's, without a table of positions; the first calls its width embed_dim."""
    is_first = kind == "qwen2_vl"
    width = sizes("embed_dim", 1280) if is_first else sizes("hidden_size", 3584)
    return VisionEncoder(
        depth=sizes("depth", 32),
        hidden_size=width,
        intermediate_size=width * sizes("mlp_ratio", 4) if is_first else sizes("intermediate_size", 3420),
        out_hidden_size=sizes("hidden_size" if is_first else "out_hidden_size", text_hidden_size),
        patch_size=sizes("patch_size", 14),
        temporal_patch_size=sizes("temporal_patch_size", 2),
        spatial_merge_size=sizes("spatial_merge_size", 2),
        num_position_embeddings=0,
        deepstack_layers=0,
        kind=kind,
    )


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}…"
