"""Weights as they lie in the memory of one rank: sharded, fused, cast and rounded as the engine does it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import groupby
from typing import Literal

from qserve.core.model_spec import ModelSpec
from qserve.core.packing import pack
from qserve.core.quantization.stored import CheckpointQuantization
from qserve.core.tensors import Tensor, dtype_bytes
from qserve.planner.memory.allocator import allocated_bytes
from qserve.planner.memory.segments import CachingAllocator

__all__ = ["Loading", "load", "rank_weights"]

_Split = Literal["all", "kv", "none"]

# (name, what it is fused with, how tensor parallelism splits it). First match decides.
_RULES: tuple[tuple[str, str, _Split], ...] = (
    (r"\.ngram_embedding\.weight$", "", "all"),
    (r"audio_tower\.layers\..*[qkv]_proj\.", "qkv", "all"),
    (r"audio_tower\.layers\..*(fc1\.|(out_proj|fc2)\.weight)", "", "all"),
    (r"audio_tower\.|multi_modal_projector\.", "", "none"),
    (r"\.ple\.", "", "none"),
    (r"\.input_mix_weight_down\.|\.block_inject_weight\.", "input_mix_weight_down_block_inject", "none"),
    (r"(embed_tokens|wte|lm_head)\.", "", "all"),
    (r"\.q_proj\.", "qkv", "all"),
    (r"\.[kv]_proj\.", "qkv", "kv"),
    (r"\.(shared_expert\.)?(gate|up)_proj\.", "gate_up", "all"),
    (r"\.in_proj_(qkv|z)\.", "in_proj_qkvz", "all"),
    (r"\.in_proj_[ab]\.", "in_proj_ba", "all"),
    (r"\.o_proj\.bias$", "", "none"),
    (r"\.(o_proj|out_proj|down_proj|c_attn|c_proj|w1|w2)\.", "", "all"),
    (r"^mtp\.fc(_embedding|_hidden)?\.", "", "all"),
    (r"\.(conv1d|A_log|dt_bias)", "", "all"),
    (r"visual\.blocks\..*(qkv|proj|fc1|fc2)\.", "", "all"),
    (r"visual\..*merger.*\.(linear_fc[12]|mlp\.[02])\.weight", "", "all"),
)
_COMPILED = tuple((re.compile(pattern), fused, split) for pattern, fused, split in _RULES)
_EXPERT_INDEX = re.compile(r"(\.experts)\.\d+\.")
# Scales keep the dtype that they are stored in; everything else in floating point is cast on loading.
_SCALE = re.compile(r"(?:scale|scales|scale_inv|absmax|SCB|quant_map|code|state)(?:\.|$)")
_FLOATS = ("F64", "F32", "F16", "BF16", "float64", "float32", "float16", "bfloat16")


@dataclass(frozen=True)
class Loading:
    """How an engine loads weights.

    `quantization` is applied in flight (None: as stored). `fuse` joins q, k, v and gate, up (vLLM), `fuse_experts`
    the experts of a layer (vLLM, transformers 5). `round_blocks`: count CUDA allocator blocks, not bytes.
    `whole_audio`: each rank has the audio encoder whole.
    """

    dtype: str
    quantization: CheckpointQuantization | None = None
    tensor_parallel_size: int = 1
    fuse: bool = False
    fuse_experts: bool = False
    round_blocks: bool = False
    max_split_bytes: int | None = None
    with_mtp: bool = False
    with_encoders: bool = True
    whole_audio: bool = False
    with_ngram_tables: bool = True
    untie_lm_head: bool = False


def rank_weights(spec: ModelSpec, tensors: Iterable[Tensor], loading: Loading) -> int:
    """Bytes of one rank's share of `tensors` (all layers of them: a pipeline stage passes its own)."""
    return sum(count * _block_bytes(nbytes, loading) for nbytes, count in _rank_blocks(spec, tensors, loading))


def load(spec: ModelSpec, tensors: Iterable[Tensor], loading: Loading, rope_bytes: int = 0) -> CachingAllocator:
    """Torch's allocator after one rank loaded its share layer by layer; the rotary table follows the embedding.

    What a tensor leaves of its segment is the next one's, or is counted with it: 0.02 GiB of Qwen3-8B-AWQ.
    """
    return _load(tuple(_rank_blocks(spec, tensors, loading)), rope_bytes, loading.max_split_bytes).copy()


@lru_cache(maxsize=256)
def _load(blocks: tuple[tuple[int, int], ...], rope_bytes: int, max_split_bytes: int | None) -> CachingAllocator:
    torch = CachingAllocator(max_split_bytes)
    embedding, *layers = (
        nbytes
        for count, group in groupby(blocks, key=lambda block: block[1])
        for nbytes in [nbytes for nbytes, _ in group] * count
    )
    torch.allocate(embedding, rope_bytes, *layers)
    torch.max_split_bytes = None
    return torch


def _rank_blocks(spec: ModelSpec, tensors: Iterable[Tensor], loading: Loading) -> Iterator[tuple[int, int]]:
    """Bytes of an allocation, and how many such there are: one a layer where `tensors` are of all layers alike."""
    kept = (tensor for tensor in tensors if _is_loaded(tensor, spec, loading))
    stored = pack(kept, loading.quantization) if loading.quantization else kept
    blocks: dict[tuple[str, int], int] = {}
    for tensor in stored:
        key, count = _block_of(tensor, spec, loading)
        blocks[key, count] = blocks.get((key, count), 0) + _share_bytes(tensor, spec, loading)
    return ((total // count, count) for (_, count), total in blocks.items())


def _is_loaded(tensor: Tensor, spec: ModelSpec, loading: Loading) -> bool:
    role = tensor.role
    if role == "lm_head" and spec.tie_word_embeddings and not loading.untie_lm_head:
        return False
    left_out = {"mtp": not loading.with_mtp, "ngram_table": not loading.with_ngram_tables, "talker": True}
    left_out |= dict.fromkeys(("vision", "audio"), not loading.with_encoders)
    return not left_out.get(role, False)


def _block_of(tensor: Tensor, spec: ModelSpec, loading: Loading) -> tuple[str, int]:
    """The name of the allocation that a tensor is part of, and how many such allocations its `repeat` makes."""
    name, count = tensor.name, tensor.repeat
    if tensor.role == "expert" and loading.fuse_experts and spec.moe:
        name, count = _EXPERT_INDEX.sub(r"\1.", name), max(1, count // spec.moe.num_experts)
    fused = _rule(tensor.name)[0]
    if fused and (loading.fuse or (tensor.role == "expert" and loading.fuse_experts)):
        parent, _, leaf = name.rpartition(".")
        name = f"{parent.rpartition('.')[0]}.{fused}.{leaf}"
    return name, count


def _share_bytes(tensor: Tensor, spec: ModelSpec, loading: Loading) -> int:
    is_cast = tensor.dtype in _FLOATS and not _SCALE.search(tensor.name)
    nbytes = tensor.num_elements * dtype_bytes(loading.dtype) if is_cast else tensor.nbytes
    split, ranks = _rule(tensor.name)[1], loading.tensor_parallel_size
    if tensor.role == "audio" and (loading.whole_audio or (spec.audio and spec.audio.tower.is_whisper)):
        split = "none"  # the library's modules, which know of no ranks
    if split == "kv":
        ranks = min(ranks, spec.num_key_value_heads)
    return nbytes if split == "none" else -(-nbytes // ranks)


@cache
def _rule(name: str) -> tuple[str, _Split]:
    return next(((fused, split) for pattern, fused, split in _COMPILED if pattern.search(name)), ("", "none"))


def _block_bytes(nbytes: int, loading: Loading) -> int:
    return allocated_bytes(nbytes, loading.max_split_bytes) if loading.round_blocks else nbytes
