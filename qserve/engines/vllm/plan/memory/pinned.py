"""Whether the copy of the embedding that a first start makes stays on the card after it was freed.

Inductor's benchmark copies the embedding and frees it (`compile_peak`), all inside vLLM's profile run. Then the run
goes on, and torch makes one more block that lives as long as the process: the workspace of cuBLAS, at the first matrix
product that cuBLAS does. If the free copy is the smallest block that the workspace fits in, the workspace lies in the
copy's segment, the segment can't be returned, and from 0.27 on vLLM charges what is gone from the card.
Source: pytorch aten/src/ATen/cuda/CublasHandlePool.cpp; vllm gpu_worker.py, determine_available_memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from qserve.core.hardware import Device
from qserve.core.model_spec import ModelSpec
from qserve.planner.constants import CUBLAS_WORKSPACE_AMPERE, CUBLAS_WORKSPACE_HOPPER
from qserve.planner.memory.segments import CachingAllocator

__all__ = ["Steps", "cublas_workspace", "pinned_copy_bytes"]

_BYTES = 2
_BIAS_TOKENS = 1024  # vllm v1/worker/gpu/sample/logit_bias.py


@dataclass(frozen=True)
class Steps:
    """What fixes the blocks of a step: sequences, tokens, ranks, and whether linears are packed."""

    num_seqs: int
    num_tokens: int
    tensor_parallel_size: int
    is_packed: bool


def cublas_workspace(device: Device) -> int:
    """Torch's persistent workspace of one stream: 32 MiB from Hopper on, a quarter of it before."""
    is_new = device.compute_capability is not None and device.compute_capability >= (9, 0)
    return (CUBLAS_WORKSPACE_HOPPER if is_new else CUBLAS_WORKSPACE_AMPERE).num_bytes


def pinned_copy_bytes(spec: ModelSpec, device: Device, steps: Steps, torch: CachingAllocator) -> int:
    """Bytes of the segment of the embedding's copy if the workspace comes to lie in it, else 0.

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
