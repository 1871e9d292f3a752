"""Tensors by name: what a safetensors header says of one, and what its name says of its place in the model."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Literal

__all__ = ["DTYPE_BYTES", "Role", "Tensor", "compact", "dtype_bytes", "role_of"]

# safetensors' own spelling, torch's spelling and vLLM's for the KV cache.
DTYPE_BYTES = {
    "F64": 8,
    "F32": 4,
    "F16": 2,
    "BF16": 2,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "F8_E8M0": 1,
    "I64": 8,
    "I32": 4,
    "I16": 2,
    "I8": 1,
    "U8": 1,
    "U16": 2,
    "U32": 4,
    "U64": 8,
    "BOOL": 1,
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "fp32": 4,
    "fp16": 2,
    "bf16": 2,
    "half": 2,
    "float": 4,
    "fp8": 1,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
    "int8": 1,
    "int8_per_token_head": 1,
    "fp8_per_token_head": 1,
}


def dtype_bytes(name: str) -> int:
    """Bytes of one element. Raises KeyError for a dtype nobody named here: a programmer's mistake or a new format."""
    return DTYPE_BYTES[name]


Role = Literal[
    "embedding",
    "lm_head",
    "linear",
    "expert",
    "router",
    "norm",
    "linear_state",
    "stream_gate",
    "ngram_table",
    "vision",
    "audio",
    "talker",
    "mtp",
    "head",
]


@dataclass(frozen=True)
class Tensor:
    """One tensor, or `repeat` of the same shape. `nbytes` is all of them together."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    repeat: int = 1

    @property
    def num_elements(self) -> int:
        """Stored elements: of a packed tensor the packed ones."""
        return math.prod(self.shape) * self.repeat

    @property
    def role(self) -> Role:
        return role_of(self.name)


# First match decides. Names as transformers writes them; Qwen (1) is transformer.h.N.attn.c_attn and so on.
_ROLES: tuple[tuple[str, Role], ...] = (
    (r"^(talker|token2wav|code2wav)\.", "talker"),
    (r"(^|\.)(audio_tower|multi_modal_projector)\.", "audio"),
    (r"(^|\.)(visual|vision_tower|vision_model)\.", "vision"),
    (r"(^|\.)mtp\.", "mtp"),
    (r"\.ngram_embedding\.", "ngram_table"),
    (r"(^|\.)(embed_tokens|wte)\.", "embedding"),
    (r"(^|\.)lm_head\.", "lm_head"),
    (r"^(score|classifier|reward_head|v_head|value_head|(query_)?(risk_level|category)_\w+)\.", "head"),
    (r"\.mlp\.experts\.", "expert"),
    (r"\.mlp\.(gate|shared_expert_gate)\.", "router"),
    (r"(norm|norm_key|norm_query|norm_conv|ln_[12f])\d*\.(weight|bias)$", "norm"),
    (r"\.(\w+_)?hyper_connection(_mixer)?\.", "stream_gate"),
    (r"\.linear_attn\.(conv1d|A_log|dt_bias|in_proj_a|in_proj_b|in_proj_ba)", "linear_state"),
)
_COMPILED = tuple((re.compile(pattern), role) for pattern, role in _ROLES)


@cache
def role_of(name: str) -> Role:
    """What a tensor is for; `linear` (a projection of attention or MLP) when no other pattern matches."""
    return next((role for pattern, role in _COMPILED if pattern.search(name)), "linear")


_INDEXED = frozenset(("layers", "h", "blocks", "experts"))


def compact(tensors: Iterable[Tensor]) -> tuple[Tensor, ...]:
    """The same tensors with those of one shape in every layer or expert told once, as `repeat` under index 0.

    A sparse model's header names twenty thousand; its dimensions name twenty.
    """
    counts: dict[tuple[str, str, tuple[int, ...]], list[int]] = {}
    for tensor in tensors:
        entry = counts.setdefault((_under_index_0(tensor.name), tensor.dtype, tensor.shape), [0, 0])
        entry[0] += tensor.repeat
        entry[1] += tensor.nbytes
    return tuple(Tensor(*key, nbytes, repeat) for key, (repeat, nbytes) in counts.items())


def _under_index_0(name: str) -> str:
    """'layers.7.mlp.experts.3.up_proj.weight' with both indices 0, in a third of a regular expression's time."""
    parts = name.split(".")
    for place in range(1, len(parts) - 2):
        if parts[place] in _INDEXED and parts[place + 1].isdigit():
            parts[place + 1] = "0"
    return ".".join(parts)
