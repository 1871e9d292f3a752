"""What stays on the card beside vLLM's own terms: counts that it overlooks, work buffers, a segment it can't return."""

from __future__ import annotations

from dataclasses import dataclass

from qserve.core.hardware import Device
from qserve.core.model_spec import ModelSpec
from qserve.engines.vllm.plan.rank_shard import loaded_blocks, ram_table_bytes
from qserve.engines.vllm.plan.step_buffers import lookup_bytes
from qserve.engines.vllm.plan.terms.activations import compile_peak, moe_workspace, sampler_buffer
from qserve.engines.vllm.plan.trial import Trial
from qserve.planner.memory.allocator import cublas_workspace
from qserve.planner.memory.segments import CachingAllocator
from qserve.planner.term import TermKind
from qserve.units import format_bytes

__all__ = ["Penalties", "RetainedBuffers", "RetainedSegment", "Steps", "counts_formula", "retained_segment_bytes"]

_BYTES = 2
_BIAS_TOKENS = 1024  # vllm v1/worker/gpu/sample/logit_bias.py


def counts_formula(sizes: Trial) -> str:
    return f"counts for penalties {sizes.max_num_seqs}·{sizes.spec.vocab_size}·(4 + 1/8)"


class Penalties(TermKind[Trial]):
    """Counts for penalties where the release overlooks them: held, but not taken from the cache."""

    name, column = "penalties", "runtime"

    def num_bytes(self, sizes: Trial, stage: int) -> int:
        return 0 if sizes.version.charges_what_is_gone else sizes.penalty_bytes

    def formula(self, sizes: Trial, stage: int) -> str:
        return f"{counts_formula(sizes)}, held but in no account of this release"

    def source(self, sizes: Trial) -> str:
        return "vllm v1/worker/gpu/sample/penalties.py"

    def is_charged(self, sizes: Trial) -> bool:
        return False


class RetainedBuffers(TermKind[Trial]):
    """What fused experts, top-k and tables in RAM keep to work in, where the release charges it as gone and not in the
    peak.
    """

    name, column = "kept buffers", "runtime"

    def num_bytes(self, sizes: Trial, stage: int) -> int:
        if not sizes.version.charges_what_is_gone:
            return 0
        ranks = sizes.candidate.tensor_parallel_size
        experts = moe_workspace(sizes.spec, sizes.version, sizes.max_num_batched_tokens, ranks)
        return experts + _top_k_rows(sizes) + _looked_up(sizes)

    def formula(self, sizes: Trial, stage: int) -> str:
        tokens, rows = sizes.max_num_batched_tokens, _top_k_rows(sizes)
        experts = f"two buffers of the fused experts for {tokens} tokens" if sizes.spec.moe else ""
        top_k = f"rows of top-k {format_bytes(rows)}" if rows else ""
        rows = _looked_up(sizes)
        tables = f"{format_bytes(rows)} of rows from tables in RAM" if rows else ""
        return f"{' + '.join(filter(None, (experts, top_k, tables)))}, kept after the profile run"

    def source(self, sizes: Trial) -> str:
        return "vllm TritonExperts.workspace_shapes, topk_topp_triton.py; mem_utils.py"


def _top_k_rows(sizes: Trial) -> int:
    return sampler_buffer(sizes.spec, sizes.device, sizes.version, sizes.max_num_seqs)


def _looked_up(sizes: Trial) -> int:
    candidate = sizes.candidate
    if not ram_table_bytes(candidate):
        return 0
    return lookup_bytes(candidate.spec, candidate.tensors, candidate.dtype, sizes.max_num_batched_tokens)


class RetainedSegment(TermKind[Trial]):
    """The embedding's copy of a first start, where it stays on the card and is charged."""

    name, column = "pinned segment", "runtime"

    def num_bytes(self, sizes: Trial, stage: int) -> int:
        spec, tokens, ranks = sizes.spec, sizes.max_num_batched_tokens, sizes.candidate.tensor_parallel_size
        # Segments that grow are given back in pages, also around a block that stays.
        pins = sizes.version.pins_freed_segments and sizes.compiles and not sizes.options.expandable_segments
        if not pins or not compile_peak(spec, sizes.version, tokens, ranks, sizes.takes_media):
            return 0
        steps = Steps(sizes.max_num_seqs, tokens, ranks, sizes.is_packed)
        return retained_segment_bytes(spec, sizes.device, steps, loaded_blocks(sizes.candidate))

    def formula(self, sizes: Trial, stage: int) -> str:
        return "the embedding's copy, first start only: cuBLAS put its workspace in it, and a later start has it free"

    def source(self, sizes: Trial) -> str:
        return "torch CUDACachingAllocator.cpp, CublasHandlePool.cpp; vllm#54122"

    def band(self, sizes: Trial, num_bytes: int) -> tuple[int, int]:
        return 0, num_bytes


@dataclass(frozen=True)
class Steps:
    """What fixes the blocks of a step: sequences, tokens, ranks, and whether linears are packed."""

    num_seqs: int
    num_tokens: int
    tensor_parallel_size: int
    is_packed: bool


def retained_segment_bytes(spec: ModelSpec, device: Device, steps: Steps, torch: CachingAllocator) -> int:
    """Bytes of the segment of the embedding's copy if the workspace comes to lie in it, else 0.

    Inductor's benchmark copies the embedding and frees it (`compile_peak`), all inside vLLM's profile run. Then the run
    goes on, and torch makes one more block that lives as long as the process: the workspace of cuBLAS, at the first
    matrix product that cuBLAS does. If the free copy is the smallest block that the workspace fits in, the workspace
    lies in the copy's segment, the segment can't be returned, and from 0.27 on vLLM charges what is gone from the card.
    Source: pytorch aten/src/ATen/cuda/CublasHandlePool.cpp; vllm gpu_worker.py, determine_available_memory.

    `torch` has the weights loaded. What they leave of shared segments of 20 MiB is where a workspace of 8 MiB may lie
    instead; so is a residual stream that is free at that moment.
    """
    torch.allocate(*_sampler_buffers(spec, steps.num_seqs))
    residual = steps.num_tokens * spec.hidden_size * _BYTES
    copied = torch.allocate(spec.vocab_size * spec.hidden_size * _BYTES // steps.tensor_parallel_size)
    torch.release([*copied, *torch.allocate(residual, residual)])
    _until_cublas(torch, spec, steps, residual)
    (workspace,) = torch.allocate(cublas_workspace(device))
    segment = copied[0].segment if copied else -1
    return torch.segments[segment] if workspace.segment == segment else 0


def _until_cublas(torch: CachingAllocator, spec: ModelSpec, steps: Steps, residual: int) -> None:
    """The profile run up to the first product of cuBLAS: q, k and v of the first layer in 16 bit.

    Where linears are packed it is the router, if there are experts, else lm_head.
    """
    ranks = steps.tensor_parallel_size
    per_head = steps.num_tokens * spec.head_dim * _BYTES // ranks
    stream = torch.allocate(residual)
    if ranks > 1:  # the sum over the ranks is a new tensor, which the partial one outlives
        stream += torch.allocate(residual)
    normed = torch.allocate(residual)
    projected = torch.allocate(per_head * (spec.num_attention_heads + 2 * spec.num_key_value_heads))
    if not steps.is_packed:
        if ranks > 1:
            torch.release(stream[:1])
        return
    torch.release(normed)
    attention = torch.allocate(per_head * spec.num_attention_heads)
    torch.release(projected)
    output = torch.allocate(residual)
    torch.release(attention)
    added = torch.allocate(residual)
    normed = torch.allocate(residual)
    torch.release([*stream, *output])
    if spec.moe:
        return
    inner = steps.num_tokens * spec.intermediate_size * _BYTES // ranks
    gate_up = torch.allocate(2 * inner)
    torch.release(normed)
    activated = torch.allocate(inner)
    torch.release(gate_up)
    down = torch.allocate(residual)
    torch.release(activated)
    torch.allocate(residual)  # the last norm's output
    torch.release([*added, *down])
    torch.allocate(steps.num_seqs * spec.hidden_size * _BYTES, steps.num_seqs * spec.vocab_size * _BYTES // ranks)


def _sampler_buffers(spec: ModelSpec, num_seqs: int) -> tuple[int, ...]:
    """Of the second model runner, in their order: tokens of the prompt, counts, and three tables of biases."""
    mask = num_seqs * -(-spec.vocab_size // 32) * 4
    return (mask, num_seqs * spec.vocab_size * 4, *(3 * (num_seqs * _BIAS_TOKENS * 4,)))
