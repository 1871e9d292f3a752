"""What a rank of vLLM has loaded: its share of the tensors, fused and sharded, and the rotary table; and what lies in
RAM for it.
"""

from __future__ import annotations

from qserve.engines.vllm.plan.layouts import stage_tensors
from qserve.engines.vllm.plan.options import VllmOptions
from qserve.engines.vllm.plan.versions import VllmVersion
from qserve.planner.candidate import Candidate
from qserve.planner.memory.rope import rope_cache_bytes
from qserve.planner.memory.segments import CachingAllocator
from qserve.planner.memory.weights import Loading, load, rank_weights
from qserve.units import MIB

__all__ = ["loaded_blocks", "ram_table_bytes", "stage_weights"]


def stage_weights(candidate: Candidate) -> tuple[int, ...]:
    """Loaded bytes of one rank, per pipeline stage: tensors as vLLM fuses and shards them, and the rotary table.

    On a card in the blocks of torch's allocator, which are larger, but not where its segments can grow: what is left
    over of a block is split off there. Source: pytorch c10/cuda/CUDACachingAllocator.cpp, should_split.
    """
    stages = range(candidate.pipeline_parallel_size)
    if not candidate.on_cpu and not candidate.request.of(VllmOptions).grows_weights:
        return tuple(loaded_blocks(candidate, stage).allocated for stage in stages)
    shares = (stage_tensors(candidate.spec, candidate.tensors, stage, len(stages)) for stage in stages)
    rope = rope_cache_bytes(candidate.spec, candidate.dtype)
    return tuple(rank_weights(candidate.spec, share, _loading(candidate)) + rope for share in shares)


def loaded_blocks(candidate: Candidate, stage: int = 0) -> CachingAllocator:
    """Torch's allocator on a card as loading one rank of the stage leaves it."""
    share = stage_tensors(candidate.spec, candidate.tensors, stage, candidate.pipeline_parallel_size)
    return load(candidate.spec, share, _loading(candidate), rope_cache_bytes(candidate.spec, candidate.dtype))


def ram_table_bytes(candidate: Candidate) -> int:
    """Of tables of n-grams in pinned RAM, which the cards read row by row: all ranks of the server together.

    Every engine of it has a copy: dp_shared_memory is DeepSeek's alone. Where a card has its memory in common with the
    CPU, they are counted on the card. Source: vllm 0.32 models/qwen4_exp/nvidia/ngram_embedding.py, whose tables are
    sharded over tensor-parallel ranks; models/deepseek_v41/common/engram.py.
    """
    options = candidate.request.of(VllmOptions)
    if not options.ngram_tables_in_ram or candidate.on_cpu or candidate.devices[0].shares_ram:
        return 0
    tables = [tensor for tensor in candidate.tensors if tensor.role == "ngram_table"]
    return (options.data_parallel_size or 1) * rank_weights(candidate.spec, tables, Loading(dtype=candidate.dtype))


def _loading(candidate: Candidate) -> Loading:
    options = candidate.request.of(VllmOptions)
    return Loading(
        dtype=candidate.dtype,
        quantization=candidate.in_flight,
        tensor_parallel_size=candidate.tensor_parallel_size,
        fuse=True,
        fuse_experts=True,
        round_blocks=not (candidate.on_cpu or options.grows_weights),
        max_split_bytes=20 * MIB if VllmVersion.parse(candidate.engine_version).limits_block_splits else None,
        with_mtp=options.num_speculative_tokens > 0,
        with_encoders=not options.language_model_only,
        whole_audio=not VllmVersion.parse(candidate.engine_version).shares_audio_encoder,
        with_ngram_tables=not ram_table_bytes(candidate),
    )
