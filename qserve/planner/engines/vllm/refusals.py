"""Requests that vLLM can't serve, whatever fits."""

from __future__ import annotations

from qserve.core.checkpoint import Checkpoint
from qserve.core.hardware import Device, Hardware
from qserve.errors import UsageError
from qserve.planner.engines.vllm.adapters import refuse_adapters
from qserve.planner.engines.vllm.options import VllmOptions
from qserve.planner.engines.vllm.versions import TESTED_RELEASE, VllmVersion, check_knows
from qserve.planner.request import PlanRequest

__all__ = ["refuse"]


def refuse(checkpoint: Checkpoint, hardware: Hardware, request: PlanRequest) -> None:
    """Raises UsageError for what a start of vLLM would end with."""
    options, release = request.of(VllmOptions), request.engine_version or TESTED_RELEASE
    if options.block_size is not None and options.block_size % 16:
        raise UsageError(f"--block-size {options.block_size}: vLLM's attention takes multiples of 16")
    seqs, batched = request.max_num_seqs, request.max_num_batched_tokens
    if seqs is not None and batched is not None and batched < seqs:
        raise UsageError(
            f"--max-num-batched-tokens {batched} is less than --max-num-seqs {seqs}: a step of vLLM holds a token of "
            "every sequence; raise the first or lower the second"
        )
    _refuse_what_no_attention_reads(options, (hardware.devices or (hardware.cpu_device,))[0])
    if options.adapters is not None:
        version = VllmVersion.parse(release)
        refuse_adapters(checkpoint.spec, options.adapters, version, options.tensor_parallel_size or 1)
    if options.num_speculative_tokens and not checkpoint.spec.mtp_layers:
        raise UsageError(
            f"--num-speculative-tokens {options.num_speculative_tokens}: {checkpoint.id} has no MTP head to draft "
            "with; leave it out"
        )
    check_knows(checkpoint.spec.architecture, release)


def _refuse_what_no_attention_reads(options: VllmOptions, device: Device) -> None:
    """Source: vllm 0.32, FlashInfer from 8.0 on and Triton from 8.9 on read a cache in fp8."""
    capability = device.compute_capability
    if options.kv_cache_dtype.startswith("fp8") and capability is not None and capability < (8, 0):
        raise UsageError(f"--kv-cache-dtype {options.kv_cache_dtype}: {device.name} has no attention kernel for it")
