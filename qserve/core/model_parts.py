"""The parts of a model that only some have, as a config.json tells them: experts, linear attention, an index of sparse
attention, residual streams, a vision encoder, a scoring head; and its numbers with their bounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from qserve.core.tensors import DTYPE_BYTES
from qserve.core.towers import VisionTower
from qserve.errors import BrokenCheckpoint

__all__ = [
    "OWN_CODE",
    "Head",
    "LinearAttention",
    "MixtureOfExperts",
    "ResidualStreams",
    "Sizes",
    "SparseIndex",
    "VisionEncoder",
    "has_heads_of_own_code",
    "read_experts",
    "read_index",
    "read_linear_attention",
    "read_streams",
    "read_vision",
]

# Above what any model has, and below what costs time: these are counted one by one. Llama 405B has 126 layers.
_MOST = {"num_hidden_layers": 1000, "depth": 1000, "mtp_num_hidden_layers": 1000}
_MOST_OF_ANY = (1 << 31) - 1


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
class SparseIndex:
    """Full attention over `budget` chosen tokens: heads of its own score blocks of `compress_ratio` tokens each.

    One key of `head_dim` a block is kept beside keys and values.
    """

    num_heads: int
    num_key_heads: int
    head_dim: int
    budget: int
    compress_ratio: int

    @property
    def projected_dim(self) -> int:
        """Rows of its one projection: queries and keys."""
        return (self.num_heads + self.num_key_heads) * self.head_dim

    @property
    def chosen_tokens(self) -> int:
        """The most that a token attends to: whole blocks, and the open one."""
        return self.budget + self.compress_ratio - 1


@dataclass(frozen=True)
class ResidualStreams:
    """Hyper-connections: `count` residual streams, which two gates a layer of rank `low_rank` mix and write back to.

    They take the place of the norms before attention and MLP, and of the last one.
    """

    count: int
    low_rank: int


@dataclass(frozen=True)
class VisionEncoder:
    """A vision tower. `tower` is its family's code; `num_position_embeddings` may be 0."""

    depth: int
    hidden_size: int
    intermediate_size: int
    out_hidden_size: int
    patch_size: int
    temporal_patch_size: int
    spatial_merge_size: int
    num_position_embeddings: int
    deepstack_layers: int
    tower: VisionTower
    in_channels: int = 3


@dataclass(frozen=True)
class Head:
    """What sits on the body: a language-model head, or a scoring one (`hidden_layers` linear layers below it).

    `guard_size`: of Qwen3Guard-Stream, which has a product to so many, a norm, and heads for level and category of
    risk, once for what a user says and once for an answer; 0 of all others.
    """

    kind: Literal["lm", "score"]
    num_labels: int = 0
    hidden_layers: int = 0
    guard_size: int = 0


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


OWN_CODE = (
    "its heads are computed by Python code in the checkpoint, which qserve does not run. Qwen/Qwen3Guard-Gen models "
    "judge whole texts, and are served as chat models"
)
"""Half a sentence, of a checkpoint that `has_heads_of_own_code`."""


def has_heads_of_own_code(architecture: str) -> bool:
    """Whether only code that comes with the checkpoint computes its heads: it is planned, and no engine serves it."""
    return architecture.endswith("ForGuardModel")


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


def read_index(sizes: Sizes) -> SparseIndex | None:
    """Of a family whose full attention may choose; None where the config has no heads for it."""
    if sizes.values.get("indexer_n_heads") is None:
        return None
    return SparseIndex(
        num_heads=sizes("indexer_n_heads"),
        num_key_heads=sizes("indexer_kv_heads"),
        head_dim=sizes("indexer_head_dim"),
        budget=sizes("indexer_budget"),
        compress_ratio=sizes("indexer_compress_ratio"),
    )


def read_streams(sizes: Sizes, count: int) -> ResidualStreams | None:
    """Of a family with `count` streams where its config is silent; None for one that has a plain residual."""
    return ResidualStreams(sizes("hc_count", count, least=2), sizes("hc_lowrank", 320)) if count else None


def read_vision(sizes: Sizes, tower: VisionTower, text_hidden_size: int) -> VisionEncoder:
    """Of a config's `vision_config`."""
    width = sizes(tower.width_key, tower.hidden_size)
    if tower.intermediate_size is None:
        inner = width * sizes("mlp_ratio", 4)
    else:
        inner = sizes("intermediate_size", tower.intermediate_size)
    deepstack = sizes.values.get("deepstack_visual_indexes", tower.deepstack) if tower.deepstack else ()
    return VisionEncoder(
        depth=sizes("depth", tower.depth),
        hidden_size=width,
        intermediate_size=inner,
        out_hidden_size=sizes(tower.out_key, text_hidden_size),
        patch_size=sizes("patch_size", tower.patch_size),
        temporal_patch_size=sizes("temporal_patch_size", 2),
        spatial_merge_size=sizes("spatial_merge_size", 2),
        num_position_embeddings=sizes("num_position_embeddings", tower.positions) if tower.positions else 0,
        deepstack_layers=len(deepstack),
        tower=tower,
    )


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}…"
