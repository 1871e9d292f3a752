"""What stays on the card beside vLLM's own terms: counts that it overlooks, work buffers, a segment it can't return."""

from __future__ import annotations

from qserve.engines.vllm.plan.loaded import loaded_blocks
from qserve.engines.vllm.plan.memory.activations import compile_peak, moe_workspace, sampler_buffer
from qserve.engines.vllm.plan.memory.pinned import Steps, pinned_copy_bytes
from qserve.engines.vllm.plan.sizing import Sizing
from qserve.planner.term import TermKind
from qserve.units import format_bytes

__all__ = ["KeptBuffers", "Penalties", "PinnedSegment", "counts_formula"]


def counts_formula(sizes: Sizing) -> str:
    return f"counts for penalties {sizes.max_num_seqs}·{sizes.spec.vocab_size}·(4 + 1/8)"


class Penalties(TermKind[Sizing]):
    """Counts for penalties where the release overlooks them: held, but not taken from the cache."""

    name, column = "penalties", "runtime"

    def num_bytes(self, sizes: Sizing, stage: int) -> int:
        return 0 if sizes.version.charges_what_is_gone else sizes.penalty_bytes

    def formula(self, sizes: Sizing, stage: int) -> str:
        return f"{counts_formula(sizes)}, held but in no account of this release"

    def source(self, sizes: Sizing) -> str:
        return "vllm v1/worker/gpu/sample/penalties.py"

    def is_charged(self, sizes: Sizing) -> bool:
        return False


class KeptBuffers(TermKind[Sizing]):
    """What fused experts and top-k keep to work in, where the release charges it as gone and not in the peak."""

    name, column = "kept buffers", "runtime"

    def num_bytes(self, sizes: Sizing, stage: int) -> int:
        if not sizes.version.charges_what_is_gone:
            return 0
        ranks = sizes.setup.tensor_parallel_size
        return moe_workspace(sizes.spec, sizes.version, sizes.max_num_batched_tokens, ranks) + _top_k_rows(sizes)

    def formula(self, sizes: Sizing, stage: int) -> str:
        tokens, rows = sizes.max_num_batched_tokens, _top_k_rows(sizes)
        experts = f"two buffers of the fused experts for {tokens} tokens" if sizes.spec.moe else ""
        top_k = f"rows of top-k {format_bytes(rows)}" if rows else ""
        return f"{' + '.join(filter(None, (experts, top_k)))}, kept after the profile run"

    def source(self, sizes: Sizing) -> str:
        return "vllm TritonExperts.workspace_shapes, topk_topp_triton.py; mem_utils.py"


def _top_k_rows(sizes: Sizing) -> int:
    return sampler_buffer(sizes.spec, sizes.device, sizes.version, sizes.max_num_seqs)


class PinnedSegment(TermKind[Sizing]):
    """The embedding's copy of a first start, where it stays on the card and is charged."""

    name, column = "pinned segment", "runtime"

    def num_bytes(self, sizes: Sizing, stage: int) -> int:
        spec, tokens, ranks = sizes.spec, sizes.max_num_batched_tokens, sizes.setup.tensor_parallel_size
        pins = sizes.version.pins_freed_segments and sizes.compiles
        if not pins or not compile_peak(spec, sizes.version, tokens, ranks):
            return 0
        steps = Steps(sizes.max_num_seqs, tokens, ranks, sizes.is_packed)
        return pinned_copy_bytes(spec, sizes.device, steps, loaded_blocks(sizes.setup))

    def formula(self, sizes: Sizing, stage: int) -> str:
        return "the embedding's copy, first start only: cuBLAS put its workspace in it, and a later start has it free"

    def source(self, sizes: Sizing) -> str:
        return "torch CUDACachingAllocator.cpp, CublasHandlePool.cpp; vllm#54122"

    def band(self, sizes: Sizing, num_bytes: int) -> tuple[int, int]:
        return 0, num_bytes
